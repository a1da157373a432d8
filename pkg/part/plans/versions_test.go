package plans_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// specVersions are the configuration versions that one binary serves.
var specVersions = []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func TestResultIsExactInEveryVersion(t *testing.T) {
	t.Parallel()
	for _, version := range specVersions {
		for _, plugin := range []string{"host-device", "macvlan"} {
			for _, ipam := range []string{"none", "local", "static"} {
				t.Run(fmt.Sprintf("%q/%s/%s", version, plugin, ipam), func(t *testing.T) {
					t.Parallel()
					exactResult(t, version, plugin, ipam)
				})
			}
		}
	}
}

func exactResult(t *testing.T, version, plugin, ipam string) {
	b := newBench(t)
	before := b.node.State()
	config := b.config(nil)
	if plugin == "macvlan" {
		config = b.macvlanConfig(map[string]any{"mac": "02:00:00:00:00:42"})
	}
	more := map[string]any{"cniVersion": version, "dns": map[string]any{"nameservers": []string{"10.9.9.9"}}}
	if version == "" {
		more["cniVersion"] = nil
	}
	switch ipam {
	case "local":
		more["ipam"] = map[string]any{
			"type": "whereabouts", "range": "172.31.1.0/24", "gateway": "172.31.1.1",
			"routes": []map[string]any{{"dst": "10.0.0.0/8"}},
		}
	case "static":
		more["ipam"] = map[string]any{
			"type": "static", "addresses": []map[string]any{{"address": "172.31.1.2/24", "gateway": "172.31.1.1"}},
			"routes": []map[string]any{{"dst": "10.0.0.0/8"}},
		}
	case "none":
		more["ipam"] = map[string]any{}
	}
	var conf map[string]any
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		t.Fatal(err)
	}
	config = b.configOf(conf, more)
	mac := "02:00:00:00:00:42"
	if plugin == "host-device" {
		l, err := link.ByName(b.node.Netns, nicName)
		if err != nil {
			t.Fatal(err)
		}
		mac = l.MAC.String()
	}
	out := b.node.MustRun(b.call("ADD", config))
	if got, want := compact(t, out), compact(t, []byte(wantResult(version, mac, b.pod.Name, ipam != "none"))); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	if ipam != "none" {
		if routes := b.pod.IP("route"); !strings.Contains(routes, "10.0.0.0/8 via 172.31.1.1 dev net1") {
			t.Errorf("routes in the pod: %s", routes)
		}
	}
	if version >= "0.4.0" {
		b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	}
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// wantResult is written from the specification's texts of each version, not
// from the code's types.
func wantResult(version, mac, pod string, ips bool) string {
	const dns = `"dns":{"nameservers":["10.9.9.9"]}`
	if version < "0.3.0" {
		if version == "" {
			version = "0.1.0"
		}
		if !ips {
			return fmt.Sprintf(`{"cniVersion":%q,%s}`, version, dns)
		}
		return fmt.Sprintf(`{"cniVersion":%q,"ip4":{"ip":"172.31.1.2/24","gateway":"172.31.1.1","routes":[{"dst":"10.0.0.0/8"}]},%s}`, version, dns)
	}
	mtu, family := "", `"version":"4",`
	if version == "1.1.0" {
		mtu = `"mtu":9000,`
	}
	if version >= "1.0.0" {
		family = ""
	}
	l3 := ""
	if ips {
		l3 = fmt.Sprintf(`"ips":[{%s"interface":0,"address":"172.31.1.2/24","gateway":"172.31.1.1"}],"routes":[{"dst":"10.0.0.0/8"}],`, family)
	}
	return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"net1","mac":%q,%s"sandbox":"/run/netns/%s"}],%s%s}`,
		version, mac, mtu, pod, l3, dns)
}

// compact returns JSON in a canonical form.
func compact(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
