//go:build rig

package tests

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The move ends the contexts of all users: a storage client of the kernel would lose its
// server, and a process its connections.
func TestRDMADeviceThatTheHostUsesIsRefusedUnlessAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		parameters string
		use        func(t *testing.T, n *node)
		user       string
	}{
		"by a kernel client": {"client=1 ", func(*testing.T, *node) {}, "kernel module rig_storage"},
		"by a process":       {"", func(t *testing.T, n *node) { n.verbsContext(t, 0) }, fmt.Sprintf("process %d (test)", os.Getpid())},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRDMANode(t, rdma.Exclusive, c.parameters)
			n.up(2)
			c.use(t, n)
			before, devices := n.State(), n.allRDMA()
			for _, want := range []string{"auto", "required"} {
				_, err := n.Run(n.pod("refused-"+want).call("ADD", "net1", n.config(0, map[string]any{"rdma": want})))
				refused(t, err, cnierr.NICProtected, nicName(0), c.user, `"allow": ["in-use"]`)
			}
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices: %v, before: %v", now, devices)
			}
			p, config := n.pod("allowed"), n.config(0, map[string]any{"allow": []string{"in-use"}})
			n.MustRun(p.call("ADD", "net1", config))
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
			if c.parameters == "" { // the move ended the context, and nobody uses the device now
				n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
				n.MustRun(p.call("DEL", "net1", n.config(0, nil)))
			}
		})
	}
}

func TestUserOfAnotherDeviceDoesNotCount(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(2)
	n.verbsContext(t, 1)
	p, config := n.pod("pod1"), n.config(0, nil)
	n.MustRun(p.call("ADD", "net1", config))
	n.MustRun(p.call("DEL", "net1", config))
}

// In shared mode the RDMA device stays, and the host may go on using it.
func TestRDMADeviceInUseIsLentInSharedMode(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "client=1 ")
	n.up(1)
	p, config := n.pod("pod1"), n.config(0, map[string]any{"rdma": "required"})
	n.MustRun(p.call("ADD", "net1", config))
	n.MustRun(p.call("DEL", "net1", config))
}

func TestChainedRDMALeavesADeviceThatTheHostUses(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	c.verbsContext(t, 0)
	c.result = c.MustRun(c.nic("ADD"))
	_, err := c.Run(c.rdma("ADD"))
	refused(t, err, cnierr.NICProtected, fmt.Sprintf("process %d (test)", os.Getpid()), `"allow": ["in-use"]`)
	c.rdmaConf["allow"] = []string{"in-use"}
	c.MustRun(c.rdma("ADD"))
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
}

// verbsContext makes a context of the rail's RDMA device, as ibv_open_device does, and
// keeps it until the test ends.
func (n *node) verbsContext(t *testing.T, rail int) {
	t.Helper()
	core := n.core(n.Netns.Netns)
	devices, err := core.ByParent(nicPCI(rail))
	if err != nil || len(devices) != 1 {
		t.Fatalf("RDMA devices of rail %d: %v, %v", rail, devices, err)
	}
	uverbs, err := core.Uverbs(devices[0])
	if err != nil {
		t.Fatal(err)
	}
	n.VerbsContext(t, uverbs)
}
