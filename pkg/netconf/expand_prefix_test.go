package netconf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// ofPools returns the variables of a node that has the pool rail-3, and a pool "all".
func ofPools(rail int) Variables {
	v := ofNode(rail)
	v.OfPool = func(pool string) (*NodePrefix, error) {
		switch pool {
		case "rail-3":
			return &NodePrefix{Prefix: "10.3.4.8/31", Gateway: "10.3.4.8", Routes: []string{"10.0.0.0/8"}}, nil
		case "all":
			return &NodePrefix{Prefix: "fd00:4::/64", Exclude: []string{"fd00:4::7/128"}, Routes: []string{"fd00::/16"}}, nil
		case "odd":
			return &NodePrefix{Prefix: "10.3.4.9/31"}, nil
		}
		return nil, failure.WithCure(failure.New(failure.TryAgain, "no pool %s", pool), "make one")
	}
	return v
}

func TestPrefixOfAPoolIsTheRange(t *testing.T) {
	for ipam, want := range map[string]map[string]any{
		`, "prefix": "nv-ipam/rail-${rail}"`: {
			"type": "whereabouts", "prefix": "nv-ipam/rail-3", "range": "10.3.4.8/31", "gateway": "10.3.4.8", "store": "local",
			"routes": []any{map[string]any{"dst": "10.0.0.0/8", "gw": "10.3.4.8"}},
		},
		`, "Prefix": "nv-ipam/rail-3", "routes": []`: { // those of the network count
			"type": "whereabouts", "prefix": "nv-ipam/rail-3", "range": "10.3.4.8/31", "gateway": "10.3.4.8", "store": "local", "routes": []any{},
		},
		`, "prefix": "nv-ipam/all"`: {
			"type": "whereabouts", "prefix": "nv-ipam/all", "range": "fd00:4::/64", "exclude": []any{"fd00:4::7/128"}, "store": "local",
			"routes": []any{map[string]any{"dst": "fd00::/16"}},
		},
	} {
		got, err := networkOf(t, ipam).Expanded(ofPools(3))
		if err != nil {
			t.Fatalf("%s: %v", ipam, err)
		}
		if have := ipamOf(t, got); !reflect.DeepEqual(have, want) {
			t.Errorf("%s: %v, want %v", ipam, have, want)
		}
		if c, err := ParseWhereabouts(got, "", nil); err != nil || !c.NodePrefix || c.Store != StoreLocal {
			t.Errorf("%s: whereabouts: %+v, %v", ipam, c, err)
		}
	}
}

func TestPoolsThatDoNotWorkAreRefused(t *testing.T) {
	for ipam, want := range map[string]string{
		`, "prefix": "nv-ipam/other"`:            `"prefix": "nv-ipam/other": no pool other; make one`,
		`, "prefix": "nv-ipam/odd"`:              `"prefix": "nv-ipam/odd": the prefix 10.3.4.9/31 has host bits`,
		`, "prefix": "nv-ipam/"`:                 `"nv-ipam/" is not the name of a CIDRPool; write it as "nv-ipam/rail-${rail}"`,
		`, "prefix": "nv-ipam/a/b"`:              `"nv-ipam/a/b" is not the name of a CIDRPool`,
		`, "prefix": "nv-ipam/../${rail}"`:       `is not the name of a CIDRPool`,
		`, "prefix": "nv-ipam/rail-${rail}${x}"`: "there is no variable ${x}",
	} {
		c := Lenient([]byte(`{"name": "n", "type": "host-device", "ipam": {"type": "whereabouts"` + ipam + `}}`))
		kind := failure.InvalidConfig
		if strings.Contains(ipam, "other") {
			kind = failure.TryAgain // that of OfPool
		}
		if got, err := c.Expanded(ofPools(3)); failure.KindOf(err) != kind || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v, want %q", ipam, got, err, want)
		}
	}
	for ipam, text := range map[string]string{
		`{"type": "host-local", "prefix": "nv-ipam/a"}`:                                        `"host-local" does not know "prefix": "nv-ipam/a"`,
		`{"type": "whereabouts", "prefix": "nv-ipam/a", "range": "10.0.0.0/16"}`:               `"prefix": "nv-ipam/a" and "range" both choose`,
		`{"type": "whereabouts", "prefix": "nv-ipam/a", "store": "kubernetes"}`:                `remove "store"`,
		`{"type": "whereabouts", "prefix": "nv-ipam/a", "sameHost": true, "range": "${rail}"}`: `"sameHost" and "prefix": "nv-ipam/a" both choose`,
	} {
		_, err := ParseHostDevice([]byte(`{"name": "n", "type": "host-device", "ipam": ` + ipam + `}`))
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", ipam, err, text)
		}
	}
}

func TestSpellingsOfAKeyCountInOneOrder(t *testing.T) {
	for range 100 { // the order of a map is random
		for ipam, want := range map[string]string{
			`, "Prefix": "node", "prefix": "nv-ipam/rail-3", "PREFIX": "x"`: "nv-ipam/rail-3",
			`, "PREFIX": "node", "Prefix": "nv-ipam/rail-3"`:                "nv-ipam/rail-3",
		} {
			got, err := networkOf(t, ipam).Expanded(ofPools(3))
			if err != nil {
				t.Fatal(err)
			}
			if have := ipamOf(t, got); have["prefix"] != want || have["range"] != "10.3.4.8/31" || have["Prefix"] != nil {
				t.Fatalf("%s: %v", ipam, have)
			}
		}
	}
}

func TestNamesOfPools(t *testing.T) {
	for name, want := range map[string]bool{
		"a.0-z.9": true, strings.Repeat("x", 253): true,
		strings.Repeat("x", 254): false, "": false, "A": false, "a_b": false, "ä": false,
	} {
		if err := checkPool(name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNetworksOfALocalPrefix(t *testing.T) {
	for ipam, want := range map[string]bool{
		`{"type": "whereabouts", "prefix": "node"}`:            true,
		`{"type": "whereabouts", "prefix": "nv-ipam/a"}`:       true,
		`{"type": "whereabouts", "range": "10.0.0.0/16"}`:      false,
		`{"type": "host-local", "prefix": "node"}`:             false,
		`{"type": "whereabouts", "prefix": "nv-ipam/${none}"}`: false,
	} {
		if got := Lenient([]byte(`{"ipam": ` + ipam + `}`)).OfLocalPrefix(); got != want {
			t.Errorf("%s: %v", ipam, got)
		}
	}
}

// A pool without ${rail} is for NICs without a rail, too.
func TestPoolsNeedTheRailOnlyForTheirName(t *testing.T) {
	for prefix, want := range map[string]bool{"node": true, "nv-ipam/rail-${rail}": true, "nv-ipam/all": false} {
		c := networkOf(t, `, "prefix": "`+prefix+`"`)
		if !c.Varies() || c.VariesByRail() != want {
			t.Errorf("%s: varies %v, by rail %v", prefix, c.Varies(), c.VariesByRail())
		}
	}
	v := ofPools(3)
	v.Rail = nil
	if _, err := networkOf(t, `, "prefix": "nv-ipam/all"`).Expanded(v); err != nil {
		t.Error(err)
	}
	if _, err := networkOf(t, `, "prefix": "nv-ipam/rail-${rail}"`).Expanded(v); err == nil || !strings.Contains(err.Error(), "the NIC has none") {
		t.Error(err)
	}
}

func TestOriginsOfPrefixes(t *testing.T) {
	for text, want := range map[string]string{
		"prefixesFrom: [nv-ipam]": "", "prefixesFrom: []": "",
		"prefixesFrom: [nvipam]": `prefixesFrom[0]: "nvipam" is not known; use "nv-ipam"`,
		"prefixesFrom: nv-ipam":  `"prefixesFrom" must be a list`,
		"prefixesFrom:":          `"prefixesFrom" must be a list`,
	} {
		file, err := ParseNodeFile([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if want == "" && file.ReadsPrefixesFrom(NVIPAM) != strings.Contains(text, "nv-ipam") {
			t.Errorf("%s: reads %v", text, file.ReadsPrefixesFrom(NVIPAM))
		}
	}
	if (*NodeFile)(nil).ReadsPrefixesFrom(NVIPAM) {
		t.Error("without a node file")
	}
}

// Otherwise the local store, which chooses the lowest free host part, would choose one again
// and again that another rail excludes.
func TestSameHostExcludesWhatAnyRailExcludes(t *testing.T) {
	v := ofNode(3)
	v.Rails = []int{0, 3, 10}
	for ipam, want := range map[string][]any{
		`, "gateway": "10.${rail}.0.1"`:                          nil,
		`, "gateway": "10.${rail}.0.1${rail}"`:                   {"10.0.0.10", "10.10.0.110"},
		`, "gateway": "10.${rail}.0.10${rail}"`:                  {"10.0.0.100"}, // of rail 10 it is no address
		`, "exclude": ["10.${rail}.${rail}.0/24"]`:               {"10.3.3.0/24", "10.0.0.0/24", "10.10.10.0/24"},
		`, "exclude": ["10.0.0.7"], "gateway": "10.${rail}.0.1"`: {"10.0.0.7"},
	} {
		text, err := networkOf(t, `, "range": "10.${rail}.0.0/16", "sameHost": true`+ipam).Expanded(v)
		if err != nil {
			t.Fatalf("%s: %v", ipam, err)
		}
		have, _ := ipamOf(t, text)["exclude"].([]any)
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s: %v, want %v", ipam, have, want)
		}
		if _, err := ParseWhereabouts(text, "", nil); err != nil {
			t.Errorf("%s: whereabouts: %v", ipam, err)
		}
	}
}
