package plans_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// static is the ipam section with fixed addresses. Each is "address" or "address gateway".
func static(routes []map[string]any, addresses ...string) map[string]any {
	var list []map[string]any
	for _, text := range addresses {
		address, gateway, _ := strings.Cut(text, " ")
		a := map[string]any{"address": address}
		if gateway != "" {
			a["gateway"] = gateway
		}
		list = append(list, a)
	}
	return map[string]any{"type": "static", "addresses": list, "routes": routes}
}

// source is the key "routing" for a table.
func source(table int) map[string]any { return map[string]any{"mode": "source", "table": table} }

// of returns the configuration of the plugin for the bench's NIC.
func (b *bench) of(plugin string, more map[string]any) string {
	if plugin == "macvlan" {
		return b.macvlanConfig(more)
	}
	return b.config(more)
}

// lines returns the lines of ip's output without spaces at their ends.
func lines(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}
	return found
}

// hasLines fails the test unless the output has exactly these lines, in any order. What ip
// adds to a route depends on its version; so each line is wanted as a prefix.
func hasLines(t *testing.T, what, output string, want ...string) {
	t.Helper()
	have := lines(output)
	if len(have) != len(want) {
		t.Errorf("%s: %d lines, want %d:\n%s\nwant:\n%s", what, len(have), len(want), output, strings.Join(want, "\n"))
		return
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("%s: %q is missing:\n%s", what, w, output)
		}
	}
}

func TestSourceRoutingMakesATableAndRules(t *testing.T) {
	t.Parallel()
	network := []map[string]any{{"dst": "172.16.0.0/12"}, {"dst": "fd16::/16"}}
	for name, c := range map[string]struct {
		ipam     map[string]any
		v4, v6   []string // routes of the table
		main4    []string // routes of the main table by the interface
		rules4   []string
		rules6   []string
		priority int
	}{
		"both families": {
			ipam: static(network, "10.1.3.17/16 10.1.0.1", "fd01::3:17/64 fd01::1"),
			v4: []string{
				"10.1.0.0/16 dev net1 scope link src 10.1.3.17", "default via 10.1.0.1 dev net1", "172.16.0.0/12 via 10.1.0.1 dev net1",
			},
			v6:     []string{"fe80::/64 dev net1", "fd01::/64 dev net1", "default via fd01::1 dev net1", "fd16::/16 via fd01::1 dev net1"},
			main4:  []string{"10.1.0.0/16 proto kernel scope link src 10.1.3.17 metric 1003"},
			rules4: []string{"20000:	from 10.1.3.17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from 10.1.3.17 lookup 1003 unreachable"},
			rules6: []string{"20000:	from fd01::3:17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from fd01::3:17 lookup 1003 unreachable"},
		},
		"no gateway": {
			ipam:   static(nil, "10.1.3.17/16"),
			v4:     []string{"10.1.0.0/16 dev net1 scope link src 10.1.3.17"},
			main4:  []string{"10.1.0.0/16 proto kernel scope link src 10.1.3.17 metric 1003"},
			rules4: []string{"20000:	from 10.1.3.17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from 10.1.3.17 lookup 1003 unreachable"},
		},
		"/31 and /127": {
			ipam:   static(nil, "10.1.3.17/31 10.1.3.16", "fd01::3:17/127 fd01::3:16"),
			v4:     []string{"10.1.3.16/31 dev net1 scope link src 10.1.3.17", "default via 10.1.3.16 dev net1"},
			v6:     []string{"fe80::/64 dev net1", "fd01::3:16/127 dev net1", "default via fd01::3:16 dev net1"},
			main4:  []string{"10.1.3.16/31 proto kernel scope link src 10.1.3.17 metric 1003"},
			rules4: []string{"20000:	from 10.1.3.17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from 10.1.3.17 lookup 1003 unreachable"},
			rules6: []string{"20000:	from fd01::3:17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from fd01::3:17 lookup 1003 unreachable"},
		},
		"/32 and /128, the gateway on the link": {
			ipam:   static(network, "10.1.3.17/32 169.254.1.1", "fd01::3:17/128 fd99::1"),
			v4:     []string{"default via 169.254.1.1 dev net1 src 10.1.3.17 onlink", "172.16.0.0/12 via 169.254.1.1 dev net1 onlink"},
			v6:     []string{"fe80::/64 dev net1", "default via fd99::1 dev net1 metric 1024 onlink", "fd16::/16 via fd99::1 dev net1 metric 1024 onlink"},
			rules4: []string{"20000:	from 10.1.3.17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from 10.1.3.17 lookup 1003 unreachable"},
			rules6: []string{"20000:	from fd01::3:17 lookup 1003", "20000:	from all oif net1 lookup 1003", "20001:	from fd01::3:17 lookup 1003 unreachable"},
		},
		"a default route of the network, and two addresses": {
			ipam:     static([]map[string]any{{"dst": "0.0.0.0/0", "gw": "10.1.0.9", "priority": 7}}, "10.1.3.17/16 10.1.0.1", "10.1.3.18/16 10.1.0.1"),
			v4:       []string{"10.1.0.0/16 dev net1 scope link src 10.1.3.17", "default via 10.1.0.9 dev net1 metric 7"},
			main4:    []string{"10.1.0.0/16 proto kernel scope link src 10.1.3.17 metric 1003"},
			priority: 500,
			rules4: []string{
				"500:	from 10.1.3.17 lookup 1003", "500:	from all oif net1 lookup 1003", "501:	from 10.1.3.17 lookup 1003 unreachable",
				"500:	from 10.1.3.18 lookup 1003", "501:	from 10.1.3.18 lookup 1003 unreachable",
			},
		},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				before, pod := b.node.State(), b.pod.State()
				rules := source(1003)
				if c.priority != 0 {
					rules["priority"] = c.priority
				}
				config := b.of(plugin, map[string]any{"ipam": c.ipam, "routing": rules})
				out := b.node.MustRun(b.call("ADD", config))
				hasLines(t, "IPv4 table", b.table("-4", "1003"), c.v4...)
				hasLines(t, "IPv6 table", b.table("-6", "1003"), c.v6...)
				hasLines(t, "main table", b.pod.IP("-4", "route", "show", "dev", "net1"), c.main4...)
				b.hasRules("-4", c.rules4...)
				b.hasRules("-6", c.rules6...)
				b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				if d := b.pod.Settled(pod); d != "" {
					t.Errorf("the pod is not as it was:\n%s", d)
				}
			})
		}
	}
}

// table lists a routing table of the pod, which may not exist.
func (b *bench) table(family, table string) string {
	b.t.Helper()
	if !strings.Contains(b.pod.IP(family, "route", "show", "table", "all"), " table "+table) {
		return ""
	}
	return b.pod.IP(family, "route", "show", "table", table)
}

// hasRules fails the test unless these are the rules of the pod beside the kernel's.
func (b *bench) hasRules(family string, want ...string) {
	b.t.Helper()
	kernel := []string{"0:	from all lookup local", "32766:	from all lookup main"}
	if family == "-4" {
		kernel = append(kernel, "32767:	from all lookup default")
	}
	hasLines(b.t, "rules "+family, b.pod.IP(family, "rule", "show"), append(kernel, want...)...)
}

func TestTwoInterfacesInOneSubnetShareTheMainTableInOrder(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		b := newBench(t)
		b.node.NIC("ens13np0", b.wire)
		for i, nic := range []string{"ens13np0", nicName} { // the first is rail 2
			rail := 2 - i
			table := 1000 + rail
			more := map[string]any{
				"device": nic, "master": nic, "routing": source(table),
				"ipam": static(nil, fmt.Sprintf("10.1.%d.17/16", rail), fmt.Sprintf("fd01::%d:17/64", rail)),
			}
			call := b.call("ADD", b.of(plugin, more))
			call.IfName = fmt.Sprint("net", table)
			b.node.MustRun(call)
		}
		for to, want := range map[string]string{
			"10.1.9.9": "dev net1001", "fd01::9:9": "dev net1001",
			"10.1.9.9 from 10.1.1.17": "dev net1001", "10.1.9.9 from 10.1.2.17": "dev net1002",
			"fd01::9:9 from fd01::1:17": "dev net1001", "fd01::9:9 from fd01::2:17": "dev net1002",
			"10.1.9.9 oif net1002": "src 10.1.2.17", "fd01::9:9 oif net1002": "src fd01::2:17", "fe80::1 oif net1002": "dev net1002",
		} {
			if got := b.pod.IP(append([]string{"route", "get"}, strings.Fields(to)...)...); !strings.Contains(got, want) {
				t.Errorf("%s: to %s: %s, want %s", plugin, to, got, want)
			}
		}
	}
}

func TestSourceRoutingNeedsATable(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		b := newBench(t)
		before, pod := b.node.State(), b.pod.State()
		_, err := b.node.Run(b.call("ADD", b.of(plugin, map[string]any{"routing": map[string]any{"mode": "source"}})))
		fails(t, err, cnierr.InvalidConfig, "rail", `"table"`)
		b.pod.IP("route", "add", "10.77.0.0/16", "dev", "lo", "table", "1003")
		with := b.pod.State()
		_, err = b.node.Run(b.call("ADD", b.of(plugin, map[string]any{"routing": source(1003), "ipam": static(nil, "10.1.3.17/16")})))
		fails(t, err, cnierr.InvalidConfig, "already has routes in table 1003", `"table"`)
		if d := b.pod.Settled(with); d != "" {
			t.Errorf("%s: the pod is not as it was:\n%s", plugin, d)
		}
		b.pod.IP("route", "del", "10.77.0.0/16", "dev", "lo", "table", "1003")
		if d := b.pod.Settled(pod); d != "" {
			t.Error(d)
		}
		b.untouched(before)
	}
}

func TestCheckNoticesRulesAndTablesThatChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change [][]string // commands of ip in the pod
		text   string     // "" = CHECK must pass
	}{
		"nothing":               {nil, ""},
		"rule of the address":   {[][]string{{"rule", "del", "from", "10.1.3.17", "priority", "20000"}}, "the rule 20000: from 10.1.3.17 lookup 1003 is gone"},
		"rule of IPv6":          {[][]string{{"-6", "rule", "del", "from", "fd01::3:17", "priority", "20000"}}, "the rule 20000: from fd01::3:17 lookup 1003"},
		"rule of the interface": {[][]string{{"rule", "del", "oif", "net1"}}, "the rule 20000: from all oif net1 lookup 1003"},
		"the last rule":         {[][]string{{"rule", "del", "priority", "20001"}}, "the rule 20001: from 10.1.3.17 unreachable"},
		"subnet":                {[][]string{{"route", "del", "10.1.0.0/16", "table", "1003"}}, "the route to 10.1.0.0/16 in table 1003"},
		"gateway":               {[][]string{{"-6", "route", "del", "default", "table", "1003"}}, "the route to ::/0 in table 1003"},
		"route of the network":  {[][]string{{"route", "del", "172.16.0.0/12", "table", "1003"}}, "the route to 172.16.0.0/12"},
		"it is in the main table instead": {
			[][]string{{"route", "del", "172.16.0.0/12", "table", "1003"}, {"route", "add", "172.16.0.0/12", "via", "10.1.0.1"}}, "the route to 172.16.0.0/12",
		},
		"a rule added": {[][]string{{"rule", "add", "from", "10.1.3.17", "lookup", "77"}}, ""},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				config := b.of(plugin, map[string]any{
					"ipam":    static([]map[string]any{{"dst": "172.16.0.0/12"}}, "10.1.3.17/16 10.1.0.1", "fd01::3:17/64 fd01::1"),
					"routing": source(1003),
				})
				prev := b.withPrevResult(config, b.node.MustRun(b.call("ADD", config)))
				for _, change := range c.change {
					b.pod.IP(change...)
				}
				_, err := b.node.Run(b.call("CHECK", prev))
				if c.text == "" {
					if err != nil {
						t.Fatal(err)
					}
				} else {
					fails(t, err, cnierr.Mismatch, c.text)
				}
				b.node.MustRun(b.call("DEL", config)) // whatever is missing
				b.nothingHeld()
			})
		}
	}
}

// sbr is chained behind the plugin. It moves the routes of the main table to tables of its
// own, with a rule for each address.
func TestCheckKnowsWhatSBRMoved(t *testing.T) {
	t.Parallel()
	routes := []map[string]any{{"dst": "172.16.0.0/12"}, {"dst": "0.0.0.0/0", "gw": "10.1.0.1"}}
	for name, c := range map[string]struct {
		more map[string]any
		only string // the plugin that has the key
		sbr  string // more keys of sbr
	}{
		"mode none":                     {more: map[string]any{"ipam": static(routes, "10.1.3.17/16 10.1.0.1")}},
		"sbr with gateways of its own":  {more: map[string]any{"ipam": static(routes[:1], "10.1.3.17/16")}, sbr: `"gateways":["10.1.0.9"],`},
		"sbr with source hints":         {more: map[string]any{"ipam": static(routes, "10.1.3.17/16 10.1.0.1")}, sbr: `"gateways":["10.1.0.9"],"addSourceHints":true,`},
		"both families":                 {more: map[string]any{"ipam": static(append(slices.Clone(routes), map[string]any{"dst": "fd16::/16"}), "10.1.3.17/16 10.1.0.1", "fd01::3:17/64 fd01::1")}},
		"the main table by its number":  {more: map[string]any{"ipam": static([]map[string]any{{"dst": "172.16.0.0/12", "table": 254}}, "10.1.3.17/16 10.1.0.1")}},
		"mode source":                   {more: map[string]any{"routing": source(1003), "ipam": static(routes, "10.1.3.17/16 10.1.0.1", "fd01::3:17/64 fd01::1")}},
		"the network of the host's NIC": {more: map[string]any{"useInterfaceNetwork": true}, only: "host-device"},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			if c.only != "" && c.only != plugin {
				continue
			}
			t.Run(plugin+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				if c.only != "" {
					b.furnish()
				}
				before := b.node.State()
				config := b.of(plugin, c.more)
				prev := b.withPrevResult(config, b.node.MustRun(b.call("ADD", config)))
				b.node.MustRun(b.call("CHECK", prev))
				sbr := strings.Replace(prev, `"type":"`+plugin, c.sbr+`"type":"sbr`, 1)
				b.node.MustRun(peer(t, b.call("ADD", sbr)))
				hints := strings.Contains(c.sbr, "addSourceHints") // it leaves routes in the main table
				if text := b.pod.IP("route", "show", "dev", "net1"); text != "" && !hints {
					t.Fatalf("sbr left in the main table: %s", text)
				}
				b.node.MustRun(b.call("CHECK", prev))
				if c.more["routing"] == nil && c.only == "" && !hints {
					// Without the rule no packet finds the routes of sbr's table.
					b.pod.IP("rule", "del", "lookup", "100")
					_, err := b.node.Run(b.call("CHECK", prev))
					fails(t, err, cnierr.Mismatch, "in table 100, but no rule leads to that table")
				}
				b.node.MustRun(peer(t, b.call("DEL", sbr)))
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				for _, family := range []string{"-4", "-6"} {
					b.hasRules(family)
				}
			})
		}
	}
}

// The settings for neighbors are those of the interface alone, and the NIC of host-device
// returns with the host's.
func TestARPSettingsAreOnTheInterfaceOnly(t *testing.T) {
	t.Parallel()
	settings := []string{"ipv4/conf/%s/arp_ignore", "ipv4/conf/%s/arp_announce", "ipv4/conf/%s/rp_filter", "ipv6/conf/%s/accept_ra"}
	for name, c := range map[string]struct {
		more map[string]any
		want string // the values of settings; "" = those of the pod
	}{
		"no key":                   {nil, "3 1 1 1"},
		"arp kernel":               {map[string]any{"arp": "kernel"}, "3 1 1 1"},
		"arp own":                  {map[string]any{"arp": "own"}, "1 2 2 0"},
		"mode main":                {map[string]any{"routing": map[string]any{"mode": "main"}}, "3 1 1 1"},
		"mode source":              {map[string]any{"routing": source(1003)}, "3 1 1 0"},
		"arp own and acceptRA":     {map[string]any{"arp": "own", "acceptRA": true}, "1 2 2 1"},
		"no router advertisements": {map[string]any{"acceptRA": false}, "3 1 1 0"},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				for _, of := range []*testnet.Netns{b.node, b.pod} { // a pod netns has the host's values of IPv4
					for i, value := range []string{"3", "1", "1", "1"} {
						of.Sysctl(fmt.Sprintf(settings[i], "default"), value)
					}
					of.Sysctl("ipv4/conf/all/rp_filter", "1")
				}
				b.furnish()
				before, pod := b.node.State(), b.pod.State()
				all := func() string {
					return b.pod.Exec("cat", "/proc/sys/net/ipv4/conf/all/arp_ignore", "/proc/sys/net/ipv4/conf/all/arp_announce", "/proc/sys/net/ipv4/conf/all/rp_filter",
						"/proc/sys/net/ipv6/conf/all/accept_ra")
				}
				ofAll := all()
				config := b.of(plugin, c.more)
				b.node.MustRun(b.call("ADD", config))
				var have []string
				for _, s := range settings {
					have = append(have, strings.TrimSpace(b.pod.Exec("cat", "/proc/sys/net/"+fmt.Sprintf(s, "net1"))))
				}
				if got := strings.Join(have, " "); got != c.want {
					t.Errorf("arp_ignore, arp_announce, rp_filter, accept_ra are %s, want %s", got, c.want)
				}
				if now := all(); now != ofAll {
					t.Errorf("the settings of all are %q, and were %q", now, ofAll)
				}
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				if d := b.pod.Settled(pod); d != "" {
					t.Errorf("the pod is not as it was:\n%s", d)
				}
			})
		}
	}
}

// Without the new keys nothing of the new part is there.
func TestNetworkWithoutRoutingKeysHasNoTableAndNoRules(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		for _, mode := range []any{nil, map[string]any{"mode": "none"}, map[string]any{"mode": "main"}} {
			b := newBench(t)
			more := map[string]any{"ipam": static([]map[string]any{{"dst": "172.16.0.0/12"}}, "10.1.3.17/16 10.1.0.1")}
			if mode != nil {
				more["routing"] = mode
			}
			config := b.of(plugin, more)
			b.node.MustRun(b.call("ADD", config))
			b.hasRules("-4")
			hasLines(t, "main table", b.pod.IP("route", "show", "dev", "net1"),
				"10.1.0.0/16 proto kernel scope link src 10.1.3.17", "172.16.0.0/12 via 10.1.0.1")
			if r := b.records()[0]; r.Routing != nil {
				t.Errorf("the record has %+v", *r.Routing)
			}
			b.node.MustRun(b.call("DEL", config))
		}
	}
}

// What the pod gets from the host's NIC is in the interface's table, too.
func TestSourceRoutingOfTheHostsOwnAddresses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before, pod := b.node.State(), b.pod.State()
	config := b.config(map[string]any{"useInterfaceNetwork": true, "routing": source(1003)})
	out := b.node.MustRun(b.call("ADD", config))
	hasLines(t, "IPv4 table", b.table("-4", "1003"), "10.9.0.0/24 dev net1 scope link src 10.9.0.1", "10.20.0.0/16 via 10.9.0.254 dev net1 metric 77")
	hasLines(t, "IPv6 table", b.table("-6", "1003"), "fe80::/64 dev net1", "fd00:9::/64 dev net1", "fd00:20::/48 via fd00:9::fe dev net1")
	hasLines(t, "table of the host", b.table("-4", "101"), "default via 10.9.0.254 dev net1")
	hasLines(t, "main table", b.pod.IP("-4", "route", "show", "dev", "net1"),
		"10.9.0.0/24 proto kernel scope link src 10.9.0.1 metric 1003", "10.20.0.0/16 via 10.9.0.254 metric 77")
	b.hasRules("-4", "20000:	from all oif net1 lookup 1003",
		"20000:	from 10.9.0.1 lookup 1003", "20001:	from 10.9.0.1 lookup 1003 unreachable", "20000:	from 10.9.0.7 lookup 1003", "20001:	from 10.9.0.7 lookup 1003 unreachable")
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
	if d := b.pod.Settled(pod); d != "" {
		t.Errorf("the pod is not as it was:\n%s", d)
	}
}

// A route of the host may have a gateway that is in no subnet of the NIC.
func TestSourceRoutingOfAGatewayOnTheLink(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "10.7.0.3/32", "dev", nicName)
	b.node.IP("route", "add", "10.99.0.0/16", "via", "169.254.1.1", "dev", nicName, "onlink")
	before := b.node.State()
	config := b.config(map[string]any{"useInterfaceNetwork": true, "routing": source(1003)})
	out := b.node.MustRun(b.call("ADD", config))
	hasLines(t, "table", b.table("-4", "1003"), "10.99.0.0/16 via 169.254.1.1 dev net1 onlink")
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// Its packets must not take another way while the interface may be up.
func TestRulesStayUntilTheInterfaceHasLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.of("macvlan", map[string]any{"ipam": static(nil, "10.1.3.17/16"), "routing": source(1003)})
	b.node.MustRun(b.call("ADD", config))
	rules := []string{"20000:	from 10.1.3.17 lookup 1003", "20000:	from all oif net1", "20001:	from 10.1.3.17 lookup 1003 unreachable"}
	b.pod.IP("link", "set", "net1", "netns", b.wire.Name)
	b.wire.IP("link", "set", "net1", "up")
	if _, err := b.node.Run(b.call("DEL", config)); err == nil {
		t.Fatal("DEL found the interface in another netns")
	}
	b.hasRules("-4", rules...)
	b.wire.IP("link", "set", "net1", "netns", b.pod.Name)
	b.node.MustRun(b.call("DEL", config))
	b.hasRules("-4")
}

// In a routed fabric the NIC has a /31 with the switch port, which is the gateway.
func TestSourceRoutingOfTheAddressThatTheNICKeeps(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "10.7.0.3/31", "dev", nicName)
	b.wire.IP("addr", "add", "10.7.0.2/31", "dev", nicName+"-sw")
	b.wire.IP("addr", "add", "172.16.1.1/32", "dev", "lo")
	before := b.node.State()
	config := b.config(map[string]any{"keepAddress": true, "routing": source(1003), "arp": "own"})
	out := b.node.MustRun(b.call("ADD", config))
	hasLines(t, "table", b.table("-4", "1003"), "10.7.0.2/31 dev net1 scope link src 10.7.0.3", "default via 10.7.0.2 dev net1 src 10.7.0.3")
	b.pod.Exec("ping", "-c", "1", "-W", "5", "-I", "10.7.0.3", "172.16.1.1")
	b.pod.Exec("ping", "-c", "1", "-W", "5", "-I", "net1", "172.16.1.1")
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// The table is that of the NIC's rail, whichever way the network selects the NIC.
func TestTableIsThatOfTheRail(t *testing.T) {
	t.Parallel()
	for name, nodeFile := range map[string]string{"in order": railsInOrder, "listed": railsListed} {
		t.Run(name, func(t *testing.T) {
			b := newRailBench(t, nodeFile)
			for rail, n := range railNICs {
				for plugin, keys := range map[string]map[string]any{
					"host-device": {"device": n.name}, "macvlan": {"master": n.name},
				} {
					keys["routing"], keys["ipam"] = map[string]any{"mode": "source"}, static(nil, "10.1.3.17/16")
					c, p := b.plan("c1", "net1", b.of(plugin, keys))
					c.Path = testnet.Peers(t)
					if _, err := b.opened.Add(context.Background(), c, p); err != nil {
						t.Fatal(err)
					}
					b.hasRules("-4", fmt.Sprintf("20000:	from 10.1.3.17 lookup %d", 1000+rail), fmt.Sprintf("20000:	from all oif net1 lookup %d", 1000+rail),
						fmt.Sprintf("20001:	from 10.1.3.17 lookup %d unreachable", 1000+rail))
					if err := b.opened.Del(context.Background(), c, p); err != nil {
						t.Fatal(err)
					}
					b.hasRules("-4")
				}
			}
		})
	}
}

// A pod may have two interfaces of one rail, if their networks name tables.
func TestTablesOfAnyNumberThatTheKernelHas(t *testing.T) {
	t.Parallel()
	for _, table := range []int{1, 252, 256, 1 << 31, 1<<32 - 1} {
		b := newBench(t)
		before, pod := b.node.State(), b.pod.State()
		config := b.config(map[string]any{"ipam": static(nil, "10.1.3.17/16 10.1.0.1", "fd01::3:17/64 fd01::1"), "routing": source(table)})
		prev := b.withPrevResult(config, b.node.MustRun(b.call("ADD", config)))
		for to, want := range map[string]string{"10.1.9.9 from 10.1.3.17": "dev net1", "172.16.1.1 from 10.1.3.17": "via 10.1.0.1", "fd16::1 from fd01::3:17": "via fd01::1"} {
			if got := b.pod.IP(append([]string{"route", "get"}, strings.Fields(to)...)...); !strings.Contains(got, want) {
				t.Errorf("table %d, to %s: %s, want %s", table, to, got, want)
			}
		}
		b.node.MustRun(b.call("CHECK", prev))
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
		if d := b.pod.Settled(pod); d != "" {
			t.Errorf("table %d: the pod is not as it was:\n%s", table, d)
		}
	}
}

// No packet from an address of the interface leaves by another interface, even while the interface
// is down.
func TestPacketsOfAnInterfaceThatIsDownTakeNoOtherWay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.NIC("eth0", b.wire)
	b.pod.IP("addr", "add", "10.244.1.5/24", "dev", "eth0")
	b.pod.IP("route", "add", "default", "via", "10.244.1.1")
	b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": static(nil, "10.1.3.17/16"), "routing": source(1003)})))
	get := func(args ...string) string {
		out, _ := exec.Command("ip", append([]string{"-n", b.pod.Name, "route", "get"}, args...)...).CombinedOutput() // it fails where there is no way
		return string(out)
	}
	for _, state := range []string{"up", "down"} {
		b.pod.IP("link", "set", "net1", state)
		if got := get("172.16.1.1", "from", "10.1.3.17"); !strings.Contains(got, "unreachable") {
			t.Errorf("%s: no gateway, and the way is %s", state, got)
		}
		if got := get("172.16.1.1"); !strings.Contains(got, "dev eth0") {
			t.Errorf("%s: the pod's own way is %s", state, got)
		}
	}
	if got := get("10.1.9.9", "from", "10.1.3.17"); !strings.Contains(got, "unreachable") {
		t.Errorf("down: to the subnet: %s", got)
	}
}

// If two ADDs run at the same time, only one gets the table. The other ADD sees the record of the
// first ADD, even if the routes of the first ADD are not there yet.
func TestTableIsThatOfOneOfTwoADDs(t *testing.T) {
	t.Parallel()
	b := newRailBench(t, railsInOrder)
	config := func(nic int) string {
		return b.config(map[string]any{"device": railNICs[nic].name, "ipam": static(nil, fmt.Sprintf("10.%d.3.17/16", nic)), "routing": source(1003)})
	}
	first, plan := b.plan("c1", "net1", config(0))
	second, other := b.plan("c1", "net2", config(1))
	first.Path = testnet.Bin(t) + ":" + testnet.Peers(t)
	second.Path = first.Path
	tried := false
	b.opened.Fault = func(step string) error {
		if step == "routing" && !tried { // the first is recorded
			tried = true
			_, err := b.opened.Add(context.Background(), second, other)
			fails(t, err, cnierr.InvalidConfig, "already has routes in table 1003, of net1", `"routing" of this network to another number`)
		}
		return nil
	}
	if _, err := b.opened.Add(context.Background(), first, plan); err != nil || !tried {
		t.Fatalf("tried %v, %v", tried, err)
	}
	b.opened.Fault = nil
	if err := b.opened.Del(context.Background(), first, plan); err != nil {
		t.Error(err)
	}
	if _, err := b.opened.Add(context.Background(), second, other); err != nil {
		t.Errorf("when the table is free again: %v", err)
	}
	if err := b.opened.Del(context.Background(), second, other); err != nil {
		t.Error(err)
	}
}

// TestTableOfARecordThatDoesNotCountIsFree has a record with a table that has no routes yet, as of an
// ADD that is under way. Only one of an attachment of this pod counts, and of this boot.
func TestTableOfARecordThatDoesNotCountIsFree(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ledger.Record){
		"another boot": func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" },
		"another pod":  func(r *ledger.Record) { r.Netns.Inode += 1 << 20; r.Netns.Cookie += 1 << 40 },
		"has ended":    func(r *ledger.Record) { r.Phase = ledger.Freeing },
		"counts":       func(*ledger.Record) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.state = filepath.Join(testnet.OnDisk(t), "state")
			config := func(table int) string {
				return b.of("macvlan", map[string]any{"ipam": static(nil, fmt.Sprintf("10.1.3.%d/16", table-1000)), "routing": source(table)})
			}
			first, second := b.call("ADD", config(1003)), b.call("ADD", config(1004))
			second.IfName = "net2"
			b.node.MustRun(first)
			was := b.changeRecord(0, func(r *ledger.Record) { r.Routing.Table = 1004; change(r) })
			// The sweep of the ADD leaves out an attachment that another process works on.
			lock, err := b.open().Ledger.TryLockAttachment(was.Key)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.node.Run(second); name == "counts" {
				fails(t, err, cnierr.InvalidConfig, "already has routes in table 1004, of net1")
			} else if err != nil {
				t.Error(err)
			}
			b.changeRecord(0, func(r *ledger.Record) { *r = *was })
			if err := lock.UnlockAndRemove(); err != nil {
				t.Error(err)
			}
			b.node.MustRun(second.With("DEL"))
			b.node.MustRun(first.With("DEL"))
			b.hasRules("-4")
		})
	}
}

// A pod that lives on without the interface must not keep rules for addresses that another
// pod may get.
func TestDELWithADamagedRecordDeletesTheRules(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			b.pod.IP("rule", "add", "pref", "20000", "from", "10.77.0.1", "lookup", "77") // the pod's own
			b.pod.IP("rule", "add", "pref", "300", "from", "10.1.3.17", "lookup", "1003")
			b.pod.IP("rule", "add", "pref", "400", "oif", "net1", "lookup", "1003")
			config := b.of(plugin, map[string]any{"ipam": static(nil, "10.1.3.17/16", "fd01::3:17/64"), "routing": source(1003)})
			b.node.MustRun(b.call("ADD", config))
			record, err := filepath.Glob(filepath.Join(b.state, "attachments", "*.json"))
			if err != nil || len(record) != 1 {
				t.Fatalf("%v, %v", record, err)
			}
			if err := os.WriteFile(record[0], []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			if plugin == "host-device" { // no record says where a NIC that is not a PCI function belongs
				b.pod.IP("link", "set", "net1", "down")
				b.pod.IP("link", "set", "net1", "netns", b.node.Name, "name", nicName)
			}
			if _, err := b.node.Run(b.call("DEL", config)); err != nil {
				t.Logf("DEL: %v", err)
			}
			b.hasRules("-4", "300:	from 10.1.3.17 lookup 1003", "400:	from all oif net1 [detached] lookup 1003",
				"20000:	from 10.77.0.1 lookup 77")
			b.hasRules("-6")
		})
	}
}
