package plans_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// Eight rails, each with its own gateway, lead to the same networks, and the
// pod has a default route before. Ours makes the same routes in the kernel as
// upstream's plugin.
func TestRailsWithRoutesToTheSameNetworkHaveOneEach(t *testing.T) {
	t.Parallel()
	const rails = 8
	for name, c := range map[string]struct{ family, address, gateway, existing, network, everything string }{
		"IPv4": {"-4", "10.1.%d.2/24", "10.1.%d.1", "10.9.9.2/24", "172.16.0.0/12", "0.0.0.0/0"},
		"IPv6": {"-6", "fd01:%d::2/64", "fd01:%d::1", "fd09::2/64", "fd16::/16", "::/0"},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				b := newBench(t)
				b.pod.NIC("eth0", b.wire)
				b.pod.IP("addr", "add", c.existing, "dev", "eth0")
				b.pod.IP("route", "add", c.everything, "dev", "eth0")
				for i := 2; i <= rails; i++ {
					b.node.NIC(fmt.Sprintf("ens1%dnp0", i+1), b.wire)
				}
				rail := func(verb string, i int) testnet.Call {
					gateway := fmt.Sprintf(c.gateway, i)
					more := map[string]any{
						"cniVersion": "1.0.0", "name": fmt.Sprint("roce-net", i), "ipam": map[string]any{
							"type": "static", "addresses": []map[string]any{{"address": fmt.Sprintf(c.address, i), "gateway": gateway}},
							"routes": []map[string]any{{"dst": c.network}, {"dst": c.everything, "gw": gateway}},
						},
					}
					nic := fmt.Sprintf("ens1%dnp0", i+1)
					config := b.config
					if more["device"] = nic; plugin == "macvlan" {
						config, more["master"] = b.macvlanConfig, nic
					}
					call := b.call(verb, config(more))
					call.IfName = fmt.Sprint("net", i)
					return call
				}
				var made [2]string
				for round := range made {
					whose := func(c testnet.Call) testnet.Call {
						if round == 0 {
							return peer(t, c)
						}
						return c
					}
					var results [rails + 1][]byte
					for i := 1; i <= rails; i++ {
						results[i] = b.node.MustRun(whose(rail("ADD", i)))
					}
					made[round] = b.pod.IP(c.family, "route", "show", c.network) + b.pod.IP(c.family, "route", "show", "default")
					for i := 1; i <= rails; i++ {
						check := rail("CHECK", i)
						check.Config = b.withPrevResult(check.Config, results[i])
						b.node.MustRun(whose(check))
					}
					for i := 1; i <= rails; i++ {
						b.node.MustRun(whose(rail("DEL", i)))
						b.node.IP("link", "set", fmt.Sprintf("ens1%dnp0", i+1), "up") // upstream leaves it down
					}
				}
				if n := strings.Count(made[1], " via "); n != 2*rails {
					t.Errorf("%d routes, want %d:\n%s", n, 2*rails, made[1])
				}
				if d := testnet.Diff(made[0], made[1]); d != "" {
					t.Errorf("not the routes of upstream's plugin:\n%s", d)
				}
			})
		}
	}
}
