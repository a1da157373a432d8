//go:build rig

package tests

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// upstream gives the same call of upstream's host-device.
func upstream(t *testing.T, c testnet.Call) testnet.Call {
	t.Helper()
	c.Path = testnet.Peers(t)
	c.Plugin = filepath.Join(c.Path, c.Plugin)
	return c
}

// On the day of the switch-over there are pods whose NICs upstream's plugin
// lent. It kept nothing but the NIC's name, as the alias.
func TestNICThatUpstreamLentComesHome(t *testing.T) {
	for name, dies := range map[string]bool{"from a living pod": false, "from a dead pod": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.up(1)
			before := n.State()
			p, config := n.pod("pod1"), n.config(0, map[string]any{"cniVersion": "1.0.0"})
			n.MustRun(upstream(t, p.call("ADD", "net1", config)))
			if dies {
				p.Kill()
			}
			n.MustRun(p.call("DEL", "net1", config))
			l, err := n.ByName(nicName(0))
			if err != nil || l.Alias != "" || l.ParentDev != nicPCI(0) || l.Name != nicName(0) {
				t.Fatalf("%s: %+v, %v\n%s", nicName(0), l, err, n.IP("-d", "link"))
			}
			// Nobody knows whether it was up.
			n.Batch(nil, "link set "+nicName(0)+" up")
			n.untouched(before)
		})
	}
}

func TestUpstreamEndsWhatOursBegan(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	p, config := n.pod("pod1"), n.config(0, map[string]any{"cniVersion": "1.0.0"})
	n.MustRun(p.call("ADD", "net1", config))
	n.MustRun(upstream(t, p.call("DEL", "net1", config)))
	if l, err := n.ByName(nicName(0)); err != nil || l.ParentDev != nicPCI(0) {
		t.Fatalf("%s: %+v, %v", nicName(0), l, err)
	}
	// The record that is left goes with the pod, and tells how the NIC was.
	p.Kill()
	for deadline := time.Now().Add(5 * time.Second); len(n.records()) > 0 && time.Now().Before(deadline); {
		n.gc()
	}
	n.untouched(before)
}
