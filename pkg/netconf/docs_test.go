package netconf

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

const keysPage = "docs/reference/keys.md"

// TestKeysPageHasEveryKey compares the tables of the page with the fields that configurations are
// decoded into. A key that the code reads must be documented, and a documented key must exist.
func TestKeysPageHasEveryKey(t *testing.T) {
	common := keysOf(Common{})
	whereabouts, beside := ipamconf.Keys()
	maps.Copy(common, beside)
	for section, want := range map[string]map[string]bool{
		"Every plugin": common,
		"host-device":  without(keysOf(HostDevice{}), common),
		"sriov":        without(keysOf(SRIOV{}), keysOf(HostDevice{})),
		"ib-sriov":     without(keysOf(IBSRIOV{}), keysOf(HostDevice{})),
		"macvlan":      without(keysOf(Macvlan{}), common),
		"ipoib":        without(keysOf(IPoIB{}), common),
		"rdma":         without(keysOf(RDMAChained{}), common),
		"whereabouts":  whereabouts,
	} {
		have := documented(t, section)
		for _, key := range slices.Sorted(maps.Keys(without(want, have))) {
			t.Errorf("%s, %s: the key %q is not documented", keysPage, section, key)
		}
		for _, key := range slices.Sorted(maps.Keys(without(have, want))) {
			t.Errorf("%s, %s: the code has no key %q", keysPage, section, key)
		}
	}
}

func TestKeysPageHasTheDefaults(t *testing.T) {
	text := docs.Section(t, keysPage, "Every plugin") + docs.Section(t, keysPage, "whereabouts")
	for _, want := range append(ipamconf.WhereaboutsFlatFiles()[:1], nodefile.DefaultStateDir, "`"+ipamconf.StoreLocal+"`", "`"+ipamconf.StoreKubernetes+"`") {
		if !strings.Contains(text, want) {
			t.Errorf("%s: %q is not in it", keysPage, want)
		}
	}
}

func without(keys, others map[string]bool) map[string]bool {
	left := maps.Clone(keys)
	maps.DeleteFunc(left, func(key string, _ bool) bool { return others[key] })
	return left
}

var quoted = regexp.MustCompile("`([^`]+)`")

// documented returns the keys in the first columns of a section's tables.
func documented(t *testing.T, title string) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for line := range strings.Lines(docs.Section(t, keysPage, title)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(line[2:], " | ")
		for _, m := range quoted.FindAllStringSubmatch(first, -1) {
			if keys[m[1]] {
				t.Errorf("%s, %s: %q is there twice", keysPage, title, m[1])
			}
			keys[m[1]] = true
		}
	}
	if len(keys) == 0 {
		t.Fatalf("%s, %s: no table of keys", keysPage, title)
	}
	return keys
}

// The NADs of the guides are read with the code of their plugins.
func TestNADsOfTheGuidesParse(t *testing.T) {
	config := regexp.MustCompile(`(?ms)^ *config: '(\{.*?\})'$`)
	for page, read := range map[string]func(config []byte) error{
		"docs/guide/host-device.md": func(config []byte) error { _, err := ParseHostDevice(config); return err },
		"docs/guide/macvlan.md":     func(config []byte) error { _, err := ParseMacvlan(config, Args{}); return err },
	} {
		found := config.FindAllStringSubmatch(docs.Page(t, page), -1)
		if len(found) == 0 {
			t.Errorf("%s has no NAD", page)
		}
		for _, m := range found {
			var conf struct{ Type string }
			if err := json.Unmarshal([]byte(m[1]), &conf); err != nil || !strings.HasSuffix(page, "/"+conf.Type+".md") {
				t.Errorf("%s: type %q, %v", page, conf.Type, err)
			}
			if err := read([]byte(m[1])); err != nil {
				t.Errorf("%s: %v:\n%s", page, err, m[1])
			}
			if _, err := ipamconf.ParseWhereabouts([]byte(m[1]), "", nil); err != nil {
				t.Errorf("%s: %v:\n%s", page, err, m[1])
			}
		}
	}
}
