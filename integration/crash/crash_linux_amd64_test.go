package crash

import (
	"os"
	"testing"

	"github.com/rail-cni/rail-cni/integration/crash/attacker"
	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

func TestMain(m *testing.M) {
	attacker.Asked()
	nicplugin.Asked()
	code := m.Run()
	stopPlane()
	printTable()
	os.Exit(code)
}

// sample is the number of points of each mode if not all are tried, enough the
// number of losses that ends the test.
const sample, enough = 1, 10

// TestNothingIsLostWherePluginsAreKilled kills ADD and DEL at each change, with
// and without their children, or makes the change fail.
func TestNothingIsLostWherePluginsAreKilled(t *testing.T) {
	need.Root(t)
	var modes []mode
	for _, r := range []string{byDEL, byLateDEL, byADD, byGC, byAgent, byAgain} {
		modes = append(modes, mode{whole: true, recovery: r})
	}
	modes = append(modes, mode{recovery: byDEL}, mode{recovery: byGC})
	for _, e := range injected {
		modes = append(modes, mode{errno: e, recovery: byDEL})
	}
	for _, plugin := range []string{"host-device", "macvlan"} {
		for _, verb := range []string{"ADD", "DEL"} {
			for _, m := range modes {
				t.Run(plugin+"/"+verb+"/"+m.String(), func(t *testing.T) {
					t.Parallel()
					sweep(t, newHost(t, plugin, verb, testnet.Bin(t)), plugin, verb, m, sample, enough).report(t)
				})
			}
		}
	}
}
