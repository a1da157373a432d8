package plans_test

import (
	"strings"
	"testing"
)

func TestRouteTakesTheGatewayOfItsFamily(t *testing.T) {
	t.Parallel()
	const routes = `"routes":[{"dst":"172.16.0.0/12"},{"dst":"fd16::/16"}]`
	for name, c := range map[string]struct{ ips, v4, v6 string }{
		"both have one": {
			`{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd01::3/64","gateway":"fd01::1"}`, "via 10.1.2.1", "via fd01::1",
		},
		"IPv6 first":      {`{"address":"fd01::3/64","gateway":"fd01::1"},{"address":"10.1.2.3/24","gateway":"10.1.2.1"}`, "via 10.1.2.1", "via fd01::1"},
		"only IPv4":       {`{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd01::3/64"}`, "via 10.1.2.1", ""},
		"only IPv6":       {`{"address":"10.1.2.3/24"},{"address":"fd01::3/64","gateway":"fd01::1"}`, "", "via fd01::1"},
		"the second IPv4": {`{"address":"10.1.2.3/24"},{"address":"10.1.3.3/24","gateway":"10.1.3.1"},{"address":"fd01::3/64"}`, "via 10.1.3.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			call := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
			call.Path = b.answering(`[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[` + c.ips + `],` + routes + `}' || true`)
			b.node.MustRun(call)
			for dst, want := range map[string]string{"172.16.0.0/12": c.v4, "fd16::/16": c.v6} {
				family := "-4"
				if strings.Contains(dst, ":") {
					family = "-6"
				}
				got := b.pod.IP(family, "route", "show", dst)
				if !strings.Contains(got, "dev net1") || !strings.Contains(got, want) || want == "" && strings.Contains(got, "via") {
					t.Errorf("the route to %s is %q, want %q", dst, got, want)
				}
			}
			b.node.MustRun(call.With("DEL"))
		})
	}
}

// TestGatewayOfZerosIsNone has the routes of an IPAM plugin that says "on the link" by a gateway
// of zeros.
func TestGatewayOfZerosIsNone(t *testing.T) {
	t.Parallel()
	const answer = `{"cniVersion":"1.0.0","ips":[{"address":"192.168.144.60/32","gateway":"0.0.0.0"},{"address":"fd00:1::60/128","gateway":"::"}],
		"routes":[{"dst":"192.168.144.1/32","gw":"0.0.0.0"},{"dst":"192.168.144.0/21","gw":"0.0.0.0"},{"dst":"fd00:1::/64","gw":"::"}]}`
	for _, plugin := range []string{"host-device", "macvlan"} {
		for name, table := range map[string]string{"main": "main", "source": "100"} {
			t.Run(plugin+", "+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				more := map[string]any{"ipam": map[string]any{"type": "spy"}}
				if name == "source" {
					more["routing"] = source(100)
				}
				config := b.of(plugin, more)
				add := b.call("ADD", config)
				add.Path = b.answering("[ $CNI_COMMAND != ADD ] || echo '" + strings.ReplaceAll(answer, "\n", "") + "'")
				out := b.node.MustRun(add)
				routes := b.pod.IP("route", "show", "table", table) + b.pod.IP("-6", "route", "show", "table", table)
				for _, want := range []string{"192.168.144.0/21 dev net1 ", "192.168.144.1 dev net1 ", "fd00:1::/64 dev net1 "} {
					if !strings.Contains(routes, want) {
						t.Errorf("there is no %q:\n%s", want, routes)
					}
				}
				check := b.call("CHECK", b.withPrevResult(config, out))
				check.Path = add.Path
				b.node.MustRun(check)
			})
		}
	}
}

// TestIPv6WorksInANamespaceThatHasItDisabled has a pod whose runtime disabled IPv6. The pod must
// reach its own address, and must keep that address when its interface goes down and up.
func TestIPv6WorksInANamespaceThatHasItDisabled(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			before := b.node.State()
			for _, of := range []string{"all", "default", "lo"} {
				b.pod.Sysctl("ipv6/conf/"+of+"/disable_ipv6", "1")
			}
			config := b.of(plugin, map[string]any{"ipam": localIPAM("fd00:1::/64")})
			b.node.MustRun(b.call("ADD", config))
			b.pod.IP("link", "set", "net1", "down")
			b.pod.IP("link", "set", "net1", "up")
			if has := b.pod.IP("-6", "addr", "show", "dev", "net1", "scope", "global"); !strings.Contains(has, "fd00:1::") {
				t.Errorf("its address went: %s", has)
			}
			if own := b.pod.IP("-6", "addr", "show", "dev", "lo"); !strings.Contains(own, "::1/128") {
				t.Errorf("lo has no IPv6: %q", own)
			}
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
		})
	}
}
