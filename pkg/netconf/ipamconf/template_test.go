package ipamconf_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// ofNode returns the variables of a node with rails 0 to 7 and the number 12.
func ofNode(rail int) ipamconf.Variables {
	node := 12
	v := ipamconf.Variables{Rail: &rail, Node: &node, Prefix: &nodefile.Prefix{Rail: rail, Prefix: "10.200.3.6/31", Gateway: "10.200.3.7"}}
	for r := range 8 {
		v.Rails = append(v.Rails, r)
	}
	return v
}

// networkOf returns a configuration of host-device with an "ipam" object of whereabouts.
func networkOf(t testing.TB, ipam string) *netconf.Common {
	t.Helper()
	c, err := netconf.ParseHostDevice([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "host-device", "rail": "auto", "prevResult": {"ips": []}, "ipam": {"type": "whereabouts"` + ipam + `}}`))
	if err != nil {
		t.Fatalf("%s: %v", ipam, err)
	}
	return &c.Common
}

func ipamOf(t testing.TB, config []byte) map[string]any {
	t.Helper()
	var keys struct{ IPAM map[string]any }
	if err := json.Unmarshal(config, &keys); err != nil {
		t.Fatalf("%v: %s", err, config)
	}
	return keys.IPAM
}

func TestVariablesAreReplacedInEveryStringOfIPAM(t *testing.T) {
	for name, c := range map[string]struct {
		ipam, want string
	}{
		"range and gateway":   {`, "range": "10.${rail}.0.0/16", "gateway": "10.${rail}.0.1"`, `, "range": "10.3.0.0/16", "gateway": "10.3.0.1"`},
		"start and end":       {`, "range": "10.0.${rail}.1-10.0.${rail}.99/16"`, `, "range": "10.0.3.1-10.0.3.99/16"`},
		"bounds":              {`, "range": "10.0.0.0/16", "range_start": "10.0.${rail}.1", "range_end": "10.0.${rail}.99"`, `, "range": "10.0.0.0/16", "range_start": "10.0.3.1", "range_end": "10.0.3.99"`},
		"exclude":             {`, "range": "10.${rail}.0.0/16", "exclude": ["10.${rail}.0.0/24", "10.${rail}.1.7"]`, `, "range": "10.3.0.0/16", "exclude": ["10.3.0.0/24", "10.3.1.7"]`},
		"more ranges":         {`, "ipRanges": [{"range": "fd00:${rail}::/64"}, {"range": "10.${rail}.0.0/16", "exclude": ["10.${rail}.0.1"]}]`, `, "ipRanges": [{"range": "fd00:3::/64"}, {"range": "10.3.0.0/16", "exclude": ["10.3.0.1"]}]`},
		"routes":              {`, "range": "10.${rail}.0.0/16", "routes": [{"dst": "10.0.0.0/8", "gw": "10.${rail}.0.1"}]`, `, "range": "10.3.0.0/16", "routes": [{"dst": "10.0.0.0/8", "gw": "10.3.0.1"}]`},
		"addresses":           {`, "addresses": [{"address": "10.${rail}.0.${node}/16"}]`, `, "addresses": [{"address": "10.3.0.12/16"}]`},
		"the address space":   {`, "range": "10.0.0.0/16", "network_name": "rail${rail}"`, `, "range": "10.0.0.0/16", "network_name": "rail3"`},
		"the node's number":   {`, "range": "10.0.${node}.0/24"`, `, "range": "10.0.12.0/24"`},
		"several in a string": {`, "range": "10.${rail}.${node}.0/24"`, `, "range": "10.3.12.0/24"`},
		"a key in capitals":   {`, "Range": "10.${rail}.0.0/16"`, `, "Range": "10.3.0.0/16"`},
		"numbers and others":  {`, "range": "10.${rail}.0.0/16", "block_size": 16, "x": [1.50, true, null, {"${rail}": 9007199254740993}]`, `, "range": "10.3.0.0/16", "block_size": 16, "x": [1.50, true, null, {"${rail}": 9007199254740993}]`},
		"an escaped dollar":   {`, "range": "10.\u0024{rail}.0.0/16"`, `, "range": "10.3.0.0/16"`},
		"dollars":             {`, "range": "10.${rail}.0.0/16", "x": "$ {rail} $rail {rail} $$"`, `, "range": "10.3.0.0/16", "x": "$ {rail} $rail {rail} $$"`},
	} {
		t.Run(name, func(t *testing.T) {
			conf := networkOf(t, c.ipam)
			got, err := conf.Expanded(ofNode(3))
			if err != nil {
				t.Fatal(err)
			}
			want := ipamOf(t, networkOf(t, c.want).Raw)
			if have := ipamOf(t, got); !reflect.DeepEqual(have, want) {
				t.Errorf("got %v, want %v", have, want)
			}
			if !strings.Contains(string(got), "9007199254740993") && strings.Contains(c.ipam, "9007199254740993") {
				t.Errorf("a number changed: %s", got)
			}
			if again, err := (&netconf.Common{Raw: got, IPAM: conf.IPAM}).Expanded(ipamconf.Variables{}); err != nil || !slices.Equal(again, got) {
				t.Errorf("expanded twice: %s, %v", again, err)
			}
			for _, key := range []string{`"prevResult"`, `"rail":"auto"`, `"cniVersion":"1.0.0"`} {
				if !strings.Contains(string(got), key) {
					t.Errorf("the configuration lacks %s: %s", key, got)
				}
			}
		})
	}
}

// The author of a network decides how deep values are nested, and how long their keys are.
func TestDeepIPAMNeedsLittleMemory(t *testing.T) {
	const depth = 3000
	deep := strings.Repeat(`{"`+strings.Repeat("k", 60)+`":`, depth) + "1" + strings.Repeat("}", depth)
	config := []byte(`{"name": "n", "type": "host-device", "device": "x", "ipam": {"type": "static", "x": ` + deep + `}}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := netconf.ParseHostDevice(config); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 100*uint64(len(config)) {
		t.Errorf("%d bytes for a configuration of %d", took, len(config))
	}
}

// A configuration without variables stays the same, byte for byte.
func TestConfigurationWithoutVariablesIsUnchanged(t *testing.T) {
	for _, ipam := range []string{``, `, "range": "10.0.0.0/16"`, `, "sameHost": false`, `, "sameHost": null, "prefix": ""`, `, "x": "$", "y": "{rail}"`} {
		c := networkOf(t, ipam)
		for _, v := range []ipamconf.Variables{{}, ofNode(3)} {
			if got, err := c.Expanded(v); err != nil || string(got) != string(c.Raw) {
				t.Errorf("%s: %s, %v", ipam, got, err)
			}
		}
		if c.Varies() || c.VariesByRail() {
			t.Errorf("%s varies", ipam)
		}
	}
	for _, raw := range []string{``, `{`, `{"ipam": null}`, `{"ipam": {}}`, `{"ipam": 7}`, `null`, `[]`} {
		c := &netconf.Common{Raw: []byte(raw)}
		if got, err := c.Expanded(ipamconf.Variables{}); err != nil || string(got) != raw {
			t.Errorf("%s: %s, %v", raw, got, err)
		}
	}
}

func TestSameHostNamesTheRangesOfAllRails(t *testing.T) {
	v := ofNode(3)
	v.Rails = []int{0, 3, 4}
	got, err := networkOf(t, `, "range": "10.${rail}.0.0/16", "sameHost": true, "RailRanges": ["forged"]`).Expanded(v)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"type": "whereabouts", "range": "10.3.0.0/16", "sameHost": true, "railRanges": []any{"10.0.0.0/16", "10.3.0.0/16", "10.4.0.0/16"}}
	if have := ipamOf(t, got); !reflect.DeepEqual(have, want) {
		t.Errorf("got %v, want %v", have, want)
	}
	// whereabouts reads it.
	c, err := ipamconf.ParseWhereabouts(got, "", nil)
	if err != nil || len(c.SameHost) != 3 {
		t.Errorf("whereabouts: %+v, %v", c, err)
	}
}

func TestPrefixOfTheNodeIsTheRange(t *testing.T) {
	v := ofNode(3)
	v.Prefix.Exclude = []string{"10.200.3.6"}
	c := networkOf(t, `, "prefix": "node"`)
	got, err := c.Expanded(v)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": "whereabouts", "prefix": "node", "range": "10.200.3.6/31", "gateway": "10.200.3.7",
		"exclude": []any{"10.200.3.6"}, "store": "local",
	}
	if have := ipamOf(t, got); !reflect.DeepEqual(have, want) {
		t.Errorf("got %v, want %v", have, want)
	}
	if _, err := ipamconf.ParseWhereabouts(got, "", nil); err != nil {
		t.Errorf("whereabouts: %v", err)
	}
}

func TestSpellingsOfAKeyCountInOneOrder(t *testing.T) {
	for range 100 { // the order of a map is random
		for ipam, want := range map[string]bool{
			`, "Prefix": "y", "prefix": "node", "PREFIX": "x"`: true,
			`, "PREFIX": "x", "Prefix": "node"`:                true,
			`, "PREFIX": "node", "Prefix": "x"`:                false,
		} {
			got, err := networkOf(t, ipam).Expanded(ofNode(3))
			if err != nil {
				t.Fatal(err)
			}
			if have := ipamOf(t, got)["range"]; want != (have == "10.200.3.6/31") {
				t.Fatalf("%s: the range is %v", ipam, have)
			}
			if c, err := ipamconf.ParseWhereabouts(got, "", nil); want != (err == nil && c.NodePrefix) {
				t.Fatalf("%s: whereabouts: %+v, %v", ipam, c, err)
			}
		}
	}
}

func TestNetworksOfALocalPrefix(t *testing.T) {
	for ipam, want := range map[string]bool{
		`{"type": "whereabouts", "prefix": "node"}`:              true,
		`{"type": "whereabouts", "range": "10.0.0.0/16"}`:        false,
		`{"type": "host-local", "prefix": "node"}`:               false,
		`{"type": "whereabouts", "prefix": "node", "x": "${x}"}`: false,
	} {
		if got := netconf.Lenient([]byte(`{"ipam": ` + ipam + `}`)).OfLocalPrefix(); got != want {
			t.Errorf("%s: %v", ipam, got)
		}
	}
}

// An IPAM plugin of another project needs only the variables. In this test each rail has the name
// of a pool.
func TestVariablesInTheNameOfAPool(t *testing.T) {
	for pool, want := range map[string]string{"rail-${rail}": "rail-3", "node-${node}-rail-${rail},all": "node-12-rail-3,all"} {
		for kind, parse := range map[string]func(config []byte) (*netconf.Common, error){
			"host-device": func(config []byte) (*netconf.Common, error) {
				c, err := netconf.ParseHostDevice(config)
				return &c.Common, err
			},
			"macvlan": func(config []byte) (*netconf.Common, error) {
				c, err := netconf.ParseMacvlan(config, netconf.Args{})
				return &c.Common, err
			},
		} {
			c, err := parse([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "` + kind + `", "rail": "auto", "ipam": {"type": "nv-ipam", "poolName": "` + pool + `", "poolType": "cidrpool"}}`))
			if err != nil {
				t.Fatalf("%s, %s: %v", kind, pool, err)
			}
			got, err := c.Expanded(ofNode(3))
			if err != nil {
				t.Fatalf("%s, %s: %v", kind, pool, err)
			}
			if have := ipamOf(t, got); !reflect.DeepEqual(have, map[string]any{"type": "nv-ipam", "poolName": want, "poolType": "cidrpool"}) {
				t.Errorf("%s, %s: %v", kind, pool, have)
			}
		}
	}
}

func TestImpossibleVariablesAreRefused(t *testing.T) {
	without := func(change func(*ipamconf.Variables)) ipamconf.Variables {
		v := ofNode(3)
		change(&v)
		return v
	}
	all := ofNode(3)
	for name, c := range map[string]struct {
		ipam string
		of   ipamconf.Variables
		text string
		cure string
	}{
		"no rail":                       {`, "range": "10.${rail}.0.0/16"`, without(func(v *ipamconf.Variables) { v.Rail = nil }), "depend on the rail, but the NIC has no rail", "railctl rails discover"},
		"no number of the node":         {`, "range": "10.0.${node}.0/24"`, without(func(v *ipamconf.Variables) { v.Node = nil }), `"ipam.range": "10.0.${node}.0/24"`, `"node" in the node file`},
		"no prefix of the node":         {`, "prefix": "node"`, without(func(v *ipamconf.Variables) { v.Prefix = nil }), "no prefix for rail 3", `"prefixes" in the node file`},
		"a rail that is all of 10/8":    {`, "range": "10.${rail}.0.0/8"`, all, "rail 3 beside rail 0: the ranges 10.0.0.0/8 and 10.0.0.0/8 overlap", "put ${rail} where"},
		"ranges that overlap in part":   {`, "range": "10.0.${rail}.0-10.0.9.0/16"`, all, "overlap", "put ${rail} where"},
		"bounds that overlap":           {`, "range": "10.0.0.0/16", "range_start": "10.0.${rail}.0"`, all, "the ranges 10.0.3.0-10.0.255.255/16 and 10.0.0.0/16 overlap", "put ${rail} where"},
		"an overlap of ipRanges":        {`, "range": "10.${rail}.0.0/16", "ipRanges": [{"range": "fd00::${rail}:0/64"}]`, all, "fd00::/64", "put ${rail} where"},
		"an overlap behind no range":    {`, "range": "", "ipRanges": [{"range": "fd00::${rail}:0/64"}]`, all, "fd00::/64", "put ${rail} where"},
		"an overlap behind one of all":  {`, "range": "10.0.0.0/16", "ipRanges": [{"range": "fd00::${rail}:0/64"}]`, all, "fd00::/64", "put ${rail} where"},
		"a start that does not count":   {`, "range": "10.0.0.0/16", "range_start": "10.9.${rail}.0"`, all, "overlap", "put ${rail} where"},
		"the last address is another's": {`, "range": "10.0.0.${rail}-10.0.0.4/24"`, without(func(v *ipamconf.Variables) { v.Rails = []int{3, 4} }), "overlap", "put ${rail} where"},
		"the first address is too":      {`, "range": "10.0.0.${rail}-10.0.0.4/24"`, without(func(v *ipamconf.Variables) { *v.Rail, v.Rails = 4, []int{3, 4} }), "overlap", "put ${rail} where"},
		"a gateway of another rail":     {`, "range": "10.${rail}.0.0/16", "gateway": "10.0.0.1"`, all, "the gateway 10.0.0.1 is not in the range 10.3.0.0/16", `correct "gateway"`},
		"a gateway outside, by rail":    {`, "range": "10.0.0.0/16", "gateway": "10.${rail}.0.1"`, all, "is not in the range", `correct "gateway"`},
		"sameHost and unequal sizes":    {`, "range": "10.${rail}.0.0/1${rail}", "sameHost": true`, without(func(v *ipamconf.Variables) { *v.Rail, v.Rails = 6, []int{6, 8} }), "equal size, but", "the same prefix length"},
		"sameHost and unequal bounds":   {`, "range": "10.${rail}.0.${rail}-10.${rail}.0.99/16", "sameHost": true`, all, "equal size, but", "the same bounds"},
		"sameHost and a range of all":   {`, "range": "10.0.${rail}.0/20", "sameHost": true`, all, "overlap", "put ${rail} where"},
		"sameHost and a broken rail":    {`, "range": "10.25${rail}.0.0/16", "sameHost": true`, all, "rail 3 beside rail 6", "network/length"},
		"a range that grows with rails": {`, "range": "` + strings.Repeat("0", 12000) + `10.${rail}.0.0/16", "sameHost": true`, all, "bytes, more than", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := networkOf(t, c.ipam).Expanded(c.of)
			if err == nil || cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.cure) {
				t.Errorf("%.300s, %v, want %q and %q", got, err, c.text, c.cure)
			}
		})
	}
}

// These configurations are refused whichever rail the NIC has, so they are refused when the
// configuration is read.
func TestImpossibleKeysOfIPAMAreRefused(t *testing.T) {
	for ipam, text := range map[string]string{
		`{"type": "whereabouts", "range": "10.${plane}.0.0/16"}`:                          `"ipam.range": "10.${plane}.0.0/16": there is no variable ${plane}; use ${rail} or ${node}`,
		`{"type": "whereabouts", "exclude": ["a", "${}"]}`:                                `"ipam.exclude[1]"`,
		`{"type": "whereabouts", "range": "10.${rail.0.0/16"}`:                            `"${" has no "}"`,
		`{"type": "whereabouts", "range": "10.${${rail}}.0.0/16"}`:                        `no variable ${${rail}`,
		`{"type": "host-local", "sameHost": true}`:                                        `"host-local" does not know "sameHost"`,
		`{"type": "host-local", "prefix": "node"}`:                                        `"host-local" does not know "prefix": "node"`,
		`{"type": "whereabouts", "range": "10.0.0.0/16", "sameHost": true}`:               `"range" has no ${rail}`,
		`{"type": "whereabouts", "sameHost": true}`:                                       `"range" has no ${rail}`,
		`{"type": "whereabouts", "sameHost": true, "prefix": "node", "range": "${rail}"}`: "both choose the addresses",
		`{"type": "whereabouts", "prefix": "node", "range": "10.${rail}.0.0/16"}`:         `"range" both choose`,
		`{"type": "whereabouts", "prefix": "node", "Gateway": "10.0.0.1"}`:                `"gateway" both choose`,
		`{"type": "whereabouts", "prefix": "node", "store": "kubernetes"}`:                `remove "store"`,
	} {
		for plugin, parse := range map[string]func([]byte) error{
			"host-device": func(config []byte) error { _, err := netconf.ParseHostDevice(config); return err },
			"macvlan":     func(config []byte) error { _, err := netconf.ParseMacvlan(config, netconf.Args{}); return err },
		} {
			err := parse([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "` + plugin + `", "rail": 1, "ipam": ` + ipam + `}`))
			if err == nil || cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), text) {
				t.Errorf("%s, %s: %v, want %q", plugin, ipam, err, text)
			}
		}
	}
	for _, ipam := range []string{`{"type": "whereabouts", "range": "10.${rail}.0.0/16"}`, `{"type": "whereabouts", "prefix": "node"}`} {
		_, err := netconf.ParseMacvlan([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "master": "net1", "linkInContainer": true, "ipam": `+ipam+`}`), netconf.Args{})
		if err == nil || !strings.Contains(err.Error(), `"linkInContainer"`) {
			t.Errorf("%s, and the master in the pod: %v", ipam, err)
		}
	}
}

// Addresses that differ by rail within one prefix do not overlap. Equal addresses in separate
// address spaces do not overlap either.
func TestRangesThatDoNotOverlap(t *testing.T) {
	for _, ipam := range []string{
		`, "range": "10.0.${rail}.1-10.0.${rail}.254/16", "gateway": "10.0.255.1"`,
		`, "range": "10.0.0.0/16", "range_start": "10.0.${rail}.1", "range_end": "10.0.${rail}.99"`,
		`, "range": "10.0.0.0/16", "network_name": "rail-${rail}"`,
		`, "range": "10.${rail}.0.0/16", "gateway": "fd00::1"`,
		`, "range": "10.${rail}.0.0/16", "gateway": "no address"`, // whereabouts reports this error
		`, "range": "10.25${rail}.0.0/16"`,                        // the range of this rail can be read
		`, "range": "10.${rail}.0.0/99"`,                          // whereabouts reports this error
		`, "range": 7, "x": "${rail}"`,                            // likewise
		`, "range": "10.${rail}.0.${rail}/16", "sameHost": true`,  // host bits do not count
		`, "range": "fd00:${rail}::/64", "sameHost": true`,
	} {
		if _, err := networkOf(t, ipam).Expanded(ofNode(3)); err != nil {
			t.Errorf("%s: %v", ipam, err)
		}
	}
}

// CHECK has the addresses of ADD, even if the node has got another number since.
func TestExpandedAsBefore(t *testing.T) {
	c := networkOf(t, `, "range": "10.${rail}.${node}.0/24"`)
	added, err := c.Expanded(ofNode(3))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := (&netconf.Common{Raw: added}).Kept()
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.ExpandedAs(kept)
	if err != nil || ipamOf(t, got)["range"] != "10.3.12.0/24" || !strings.Contains(string(got), "prevResult") {
		t.Errorf("%s, %v", got, err)
	}
	for _, damaged := range []string{``, `{`, `{}`, `[]`} {
		if got, err := c.ExpandedAs([]byte(damaged)); err == nil {
			t.Errorf("%q: %s", damaged, got)
		}
	}
	plain := networkOf(t, `, "range": "10.0.0.0/24"`)
	if got, err := plain.ExpandedAs(nil); err != nil || string(got) != string(plain.Raw) {
		t.Errorf("without variables: %s, %v", got, err)
	}
}

// The reference plugins, and the plugins of chains, call whereabouts with the author's own text.
func TestWhereaboutsRefusesVariables(t *testing.T) {
	for ipam, text := range map[string]string{
		`{"type": "whereabouts", "range": "10.${rail}.0.0/16"}`:                            "${rail}",
		`{"type": "whereabouts", "range": "10.0.0.0/16", "range_start": "10.0.${node}.1"}`: "${node}",
	} {
		_, err := ipamconf.ParseWhereabouts([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": `+ipam+`}`), "", nil)
		if err == nil || cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "host-device or macvlan of rail-cni") {
			t.Errorf("%s: %v", ipam, err)
		}
	}
	if _, err := ipamconf.ParseWhereabouts([]byte(`{"name": "n", "ipam": {"type": "whereabouts", "range": "10.0.0.0/16", "log_file": "/tmp/whereabouts-${x}"}}`), "", nil); err != nil {
		t.Errorf("a variable of others: %v", err)
	}
}

// Without the exclusion the local store, which chooses the lowest free host part, would again and
// again choose one that another rail excludes.
func TestSameHostExcludesWhatAnyRailExcludes(t *testing.T) {
	v := ofNode(3)
	v.Rails = []int{0, 3, 10}
	for ipam, want := range map[string][]any{
		`, "gateway": "10.${rail}.0.1"`:                          nil,
		`, "gateway": "10.${rail}.0.1${rail}"`:                   {"10.0.0.10", "10.10.0.110"},
		`, "gateway": "10.${rail}.0.10${rail}"`:                  {"10.0.0.100"}, // for rail 10 the text is not an address
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
		if _, err := ipamconf.ParseWhereabouts(text, "", nil); err != nil {
			t.Errorf("%s: whereabouts: %v", ipam, err)
		}
	}
}

// The keys that the calling plugin writes are the keys that whereabouts reads.
func TestWhereaboutsReadsWhatIsExpanded(t *testing.T) {
	rail, prefix := 3, nodefile.Prefix{Rail: 3, Prefix: "10.3.4.8/31", Gateway: "10.3.4.8"}
	for ipam, want := range map[string]string{
		`, "range": "10.${rail}.0.0/16", "sameHost": true, "exclude": ["10.${rail}.0.0/28"]`: "10.3.0.0/16 [10.0.0.0/16 10.3.0.0/16] false  invalid IP",
		`, "prefix": "node"`: "10.3.4.8/31 [] true local 10.3.4.8",
	} {
		text, err := networkOf(t, ipam).Expanded(ipamconf.Variables{Rail: &rail, Rails: []int{0, 3}, Prefix: &prefix})
		if err != nil {
			t.Fatal(err)
		}
		c, err := ipamconf.ParseWhereabouts(text, "", nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := fmt.Sprint(c.Ranges[0].Prefix, " ", c.SameHost, " ", c.NodePrefix, " ", c.Store, " ", c.Gateway); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// FuzzExpanded checks that only "ipam" changes, that no variable that can be replaced is left, and
// that the size is bounded.
func FuzzExpanded(f *testing.F) {
	for _, ipam := range []string{
		`{"type": "whereabouts", "range": "10.${rail}.0.0/16", "gateway": "10.${rail}.0.1"}`,
		`{"type": "whereabouts", "range": "10.${rail}.0.0/16", "sameHost": true, "exclude": ["10.${rail}.${node}.0/24"]}`,
		`{"type": "whereabouts", "prefix": "node"}`, `{"type": "whereabouts", "ipRanges": [{"range": "fd00:${rail}::/64"}, null, 7]}`,
		`{"type": "static", "addresses": [{"address": "10.0.${rail}.1/24"}]}`, `{"x": "${"}`, `{"x": ["${rail}${node}${${"]}`, `null`, `{`, `{"range": {"range": []}}`,
	} {
		f.Add(ipam, 3, 12, true)
	}
	f.Fuzz(func(t *testing.T, ipam string, rail, node int, known bool) {
		c := netconf.Lenient([]byte(`{"name": "n", "rail": "auto", "x": "${rail}", "ipam": ` + ipam + `}`))
		v := ofNode(rail & 255)
		v.Rails = append(v.Rails, rail&255)
		*v.Node = node & 0xffff
		if !known {
			v = ipamconf.Variables{}
		}
		got, err := c.Expanded(v)
		if err != nil || !json.Valid(c.Raw) {
			return
		}
		if len(got) > 6*max(len(c.Raw), 64<<10) { // JSON escapes a character with six
			t.Fatalf("%d bytes of %d", len(got), len(c.Raw))
		}
		var before, after map[string]any
		if err := json.Unmarshal(c.Raw, &before); err != nil {
			return
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		for _, keys := range []map[string]any{before, after} {
			maps.DeleteFunc(keys, func(key string, _ any) bool { return strings.EqualFold(key, "ipam") })
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("beside ipam: %s from %s", got, c.Raw)
		}
		if again, err := ipamconf.ParseTemplate(c.IPAM.Type, got); err == nil && again.HasVariables() {
			t.Fatalf("not expanded: %s from %s", got, c.Raw)
		}
	})
}
