package plans_test

import (
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// peer returns the same call of the upstream plugin of the same name.
func peer(t *testing.T, c testnet.Call) testnet.Call {
	t.Helper()
	c.Path = testnet.Peers(t)
	c.Plugin = filepath.Join(c.Path, c.Plugin)
	return c
}

// At the switch-over there are pods whose NICs upstream's plugin lent, and
// after a switch back pods whose NICs ours lent.
func TestEitherPluginEndsWhatTheOtherBegan(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		for _, oursBegins := range []bool{true, false} {
			name := plugin + "/upstream begins"
			if oursBegins {
				name = plugin + "/ours begins"
			}
			t.Run(name, func(t *testing.T) {
				b := newBench(t)
				before := b.node.State()
				more := map[string]any{"cniVersion": "1.0.0", "ipam": map[string]any{
					"type": "host-local", "subnet": "10.4.4.0/24", "dataDir": t.TempDir(),
				}}
				config := b.config(more)
				if plugin == "macvlan" {
					config = b.macvlanConfig(more)
				}
				first, second := b.call("ADD", config), peer(t, b.call("DEL", config))
				if !oursBegins {
					first, second = peer(t, first), b.call("DEL", config)
				}
				out := b.node.MustRun(first)
				if !oursBegins {
					b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
				}
				b.node.MustRun(second)
				switch {
				case plugin == "macvlan":
				case oursBegins:
					b.node.IP("link", "set", nicName, "up") // upstream leaves it down
				default:
					b.fetch() // a NIC with a device is returned (integration/rig/tests)
				}
				if oursBegins {
					// Then the runtime forgets it, and only the record is left.
					b.node.MustRun(b.call("DEL", config))
				}
				b.untouched(before)
			})
		}
	}
}

func TestIPAMPluginsOfOthersWork(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		for name, ipam := range map[string]map[string]any{
			"static":     {"type": "static", "addresses": []map[string]any{{"address": "10.4.4.4/24"}}},
			"host-local": {"type": "host-local", "subnet": "10.4.4.0/24"},
		} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				b := newBench(t)
				before := b.node.State()
				if name == "host-local" {
					ipam["dataDir"] = t.TempDir()
				}
				config := b.config(map[string]any{"ipam": ipam})
				if plugin == "macvlan" {
					config = b.macvlanConfig(map[string]any{"ipam": ipam})
				}
				out := b.node.MustRun(b.call("ADD", config))
				b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
			})
		}
	}
}
