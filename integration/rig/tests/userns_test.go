//go:build rig

package tests

import (
	"encoding/json"
	"os/exec"
	"syscall"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// usernsPod returns a pod whose netns belongs to a user namespace, as that of a pod with
// hostUsers: false does, and a function that kills its process and removes its path.
func (n *node) usernsPod(container string) (p *pod, die func()) {
	n.t.Helper()
	cmd := exec.Command("sleep", "600")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{},
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	n.t.Cleanup(end)
	p = &pod{testnet.OfProcess(n.t, cmd.Process.Pid), container}
	p.IP("link", "set", "lo", "up")
	return p, func() {
		end()
		p.Kill()
	}
}

// The kernel asks for capabilities in the user namespace that owns a netns: for a NIC and
// for an RDMA device, and for sysctls.
func TestPodsInAUserNamespaceGetAndReturnNICsWithRDMA(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.furnish(1)
			before, devices := n.State(), n.allRDMA()
			for _, way := range []string{"DEL", "death, then DEL", "death, then railctl gc"} {
				p, die := n.usernsPod("trainer")
				keys := map[string]any{"rdma": "required", "ipam": map[string]any{
					"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
				}}
				call := p.call("ADD", "net1", n.config(0, keys))
				keys["prevResult"] = json.RawMessage(n.MustRun(call))
				n.MustRun(p.call("CHECK", "net1", n.config(0, keys)))
				_, there := n.rdmaState(p.Netns.Netns)["mlx5_0"]
				_, here := n.rdmaState(n.Netns.Netns)["mlx5_0"]
				if !there || here == (mode == rdma.Exclusive) {
					t.Errorf("mlx5_0 is visible in the pod: %v, on the host: %v", there, here)
				}
				if way != "DEL" {
					die()
				}
				if way == "death, then railctl gc" {
					n.fallen([]loan{{p, 0, "net1"}})
					n.gc()
				} else {
					n.MustRun(call.With("DEL"))
				}
				n.untouched(before)
				n.rdmaAll(devices)
				if t.Failed() {
					t.Fatalf("after %s", way)
				}
				if way == "DEL" {
					die()
				}
			}
		})
	}
}
