package netconf

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// routingOf parses the keys as a configuration of the plugin.
func routingOf(plugin, keys string) (*Routing, error) {
	config := []byte(`{"name": "n", "type": "` + plugin + `"` + keys + `}`)
	if plugin == "macvlan" {
		c, err := ParseMacvlan(config, Args{})
		if err != nil {
			return nil, err
		}
		return &c.Routing, nil
	}
	c, err := ParseHostDevice(config)
	if err != nil {
		return nil, err
	}
	return &c.Routing, nil
}

func TestRoutingOfANetwork(t *testing.T) {
	const ra, ignore, announce, filter = "ipv6/conf/accept_ra", "ipv4/conf/arp_ignore", "ipv4/conf/arp_announce", "ipv4/conf/rp_filter"
	own := map[string]string{ignore: "1", announce: "2", filter: "2", ra: "0"}
	three := 3
	for keys, want := range map[string]struct {
		mode     string
		table    string // of rail 3, and without a rail
		priority int
		sysctls  map[string]string
	}{
		``:                                 {"", "1003 none", 20000, nil},
		`, "routing": {}`:                  {"", "1003 none", 20000, nil},
		`, "routing": null`:                {"", "1003 none", 20000, nil},
		`, "routing": {"mode": "main"}`:    {"main", "1003 none", 20000, nil},
		`, "routing": {"mode": "source"}`:  {"source", "1003 none", 20000, map[string]string{ra: "0"}},
		`, "Routing": {"Mode": "source"}`:  {"source", "1003 none", 20000, map[string]string{ra: "0"}},
		`, "arp": "own"`:                   {"", "1003 none", 20000, own},
		`, "arp": "kernel"`:                {"", "1003 none", 20000, nil},
		`, "acceptRA": false`:              {"", "1003 none", 20000, map[string]string{ra: "0"}},
		`, "acceptRA": true`:               {"", "1003 none", 20000, map[string]string{ra: "1"}},
		`, "acceptRA": null, "arp": "own"`: {"", "1003 none", 20000, own},
		`, "acceptRA": true, "arp": "own"`: {"", "1003 none", 20000, map[string]string{ignore: "1", announce: "2", filter: "2", ra: "1"}},
		`, "routing": {"mode": "source", "table": 1, "priority": 1}`:              {"source", "1 1", 1, map[string]string{ra: "0"}},
		`, "routing": {"mode": "source", "table": 4294967295, "priority": 32764}`: {"source", "4294967295 4294967295", 32764, map[string]string{ra: "0"}},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			got, err := routingOf(plugin, keys)
			if err != nil {
				t.Errorf("%s, %s: %v", plugin, keys, err)
				continue
			}
			var tables []string
			for _, rail := range []*int{&three, nil} {
				table, ok := got.RouteTable(rail)
				if text := fmt.Sprint(table); ok {
					tables = append(tables, text)
				} else {
					tables = append(tables, "none")
				}
			}
			if have := strings.Join(tables, " "); got.Policy.Mode != want.mode || have != want.table || got.RulePriority() != want.priority {
				t.Errorf("%s, %s: mode %s, tables %s, priority %d, want %+v", plugin, keys, got.Policy.Mode, have, got.RulePriority(), want)
			}
			if have := got.Sysctls(); !maps.Equal(have, want.sysctls) {
				t.Errorf("%s, %s: sysctls %v, want %v", plugin, keys, have, want.sysctls)
			}
		}
	}
}

func TestImpossibleRoutingIsRefused(t *testing.T) {
	source := func(more string) string { return `, "routing": {"mode": "source", ` + more + `}` }
	for keys, want := range map[string]struct {
		code uint
		text string
	}{
		`, "routing": {"mode": "sources"}`:              {cnierr.InvalidConfig, `did you mean "source"?`},
		`, "routing": {"mode": "policy-based"}`:         {cnierr.InvalidConfig, "source, main, none"},
		`, "routing": {"moed": "source"}`:               {cnierr.Decode, `did you mean "mode"?`},
		`, "routing": {"mode": "source", "tabel": 7}`:   {cnierr.Decode, `did you mean "table"?`},
		`, "routing": {"mode": "source", "rules": "x"}`: {cnierr.Decode, "unknown key"},
		`, "routing": "source"`:                         {cnierr.Decode, `{"mode": "source"}`},
		`, "routing": ["source"]`:                       {cnierr.Decode, "an object"},
		`, "routing": {"mode": 1}`:                      {cnierr.Decode, "a string"},
		`, "routing": {"table": 7}`:                     {cnierr.InvalidConfig, `"mode": "source"`},
		`, "routing": {"mode": "main", "priority": 7}`:  {cnierr.InvalidConfig, `only for mode "source"`},
		source(`"table": 0`):                            {cnierr.InvalidConfig, "0 is not a table number"},
		source(`"table": -1`):                           {cnierr.InvalidConfig, "-1 is not a table number"},
		source(`"table": 253`):                          {cnierr.InvalidConfig, "253 is a table of the kernel"},
		source(`"table": 254`):                          {cnierr.InvalidConfig, "254 is a table of the kernel"},
		source(`"table": 255`):                          {cnierr.InvalidConfig, "255 is a table of the kernel"},
		source(`"table": 4294967296`):                   {cnierr.InvalidConfig, "4294967296 is not a table number"},
		source(`"table": "auto"`):                       {cnierr.Decode, "a whole number"},
		source(`"table": 1.5`):                          {cnierr.Decode, "a whole number"},
		source(`"priority": 0`):                         {cnierr.InvalidConfig, "0 does not precede the main table"},
		source(`"priority": 32765`):                     {cnierr.InvalidConfig, "32765 does not precede"},
		`, "arp": "owned"`:                              {cnierr.InvalidConfig, `did you mean "own"?`},
		`, "arp": "ignore"`:                             {cnierr.InvalidConfig, "kernel, own"},
		`, "arp": true`:                                 {cnierr.Decode, `"arp" cannot be`},
		`, "acceptRA": "no"`:                            {cnierr.Decode, "true or false"},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			_, err := routingOf(plugin, keys)
			if err == nil || cnierr.Code(err) != want.code || !strings.Contains(err.Error(), want.text) {
				t.Errorf("%s, %s: %v, want code %d and %q", plugin, keys, err, want.code, want.text)
			}
		}
	}
	_, err := routingOf("macvlan", `, "master": "net1", "linkInContainer": true, "routing": {"mode": "source"}`)
	if err == nil || cnierr.Code(err) != cnierr.InvalidConfig || !strings.Contains(err.Error(), `"table"`) {
		t.Errorf("the table of a rail, and a master in the pod: %v", err)
	}
	if _, err := routingOf("macvlan", `, "master": "net1", "linkInContainer": true, "routing": {"mode": "source", "table": 7}`); err != nil {
		t.Error(err)
	}
}
