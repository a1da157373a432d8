//go:build rig

package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// rotate renames each device of the namespaces to the name of the next one,
// through a spare name, because names are unique in the machine.
func (n *node) rotate(in []*netns.Netns, names []string) {
	n.t.Helper()
	rename := func(i int, from, to string) {
		n.t.Helper()
		core, err := rdma.Open(in[i])
		if err != nil {
			n.t.Fatal(err)
		}
		defer core.Close() // it keeps the pod's netns
		d, err := core.ByName(from)
		if err == nil {
			err = core.Rename(d, to)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	rename(0, names[0], "spare")
	for i := len(names) - 1; i > 0; i-- {
		rename(i, names[i], names[(i+1)%len(names)])
	}
	rename(0, "spare", names[1])
}

// Pods exchange the names of their RDMA devices, which are unique in the
// machine: each name blocks the return of another device.
func TestRDMADevicesThatExchangedNamesComeHome(t *testing.T) {
	type ending struct {
		devices, pods int
		end           func(n *node, calls []testnet.Call, pods []*pod)
	}
	killed := func(n *node, pods []*pod) {
		for _, p := range pods {
			p.Kill()
		}
		for deadline := time.Now().Add(20 * time.Second); len(n.records()) > 0 && time.Now().Before(deadline); {
			n.gc()
		}
	}
	inOrder := func(n *node, calls []testnet.Call, _ []*pod) {
		for _, c := range calls {
			n.MustRun(c)
		}
	}
	for name, c := range map[string]ending{
		"DEL in order": {2, 1, inOrder},
		"DEL in reverse order": {2, 1, func(n *node, calls []testnet.Call, pods []*pod) {
			calls = slices.Clone(calls)
			slices.Reverse(calls)
			inOrder(n, calls, pods)
		}},
		"all DELs at once": {3, 2, func(n *node, calls []testnet.Call, _ []*pod) {
			var all sync.WaitGroup
			for _, c := range calls {
				all.Go(func() {
					if _, err := n.Run(c); err != nil {
						n.t.Errorf("DEL: %v", err)
					}
				})
			}
			all.Wait()
		}},
		"the pod is killed": {2, 1, func(n *node, _ []testnet.Call, pods []*pod) { killed(n, pods) }},
		"one DEL, and the rest killed": {3, 2, func(n *node, calls []testnet.Call, pods []*pod) {
			n.MustRun(calls[0])
			killed(n, pods)
		}},
	} {
		t.Run(fmt.Sprintf("%s, %d devices of %d pods", name, c.devices, c.pods), func(t *testing.T) {
			n := newRDMANode(t, rdma.Exclusive, "")
			n.up(c.devices)
			before, devices := n.State(), n.allRDMA()
			var pods []*pod
			for i := range c.pods {
				pods = append(pods, n.pod(fmt.Sprintf("pod%d", i)))
			}
			var calls []testnet.Call
			var in []*netns.Netns
			var names []string
			for rail := range c.devices {
				p := pods[rail%c.pods]
				call := p.call("ADD", podName(rail), n.config(rail, map[string]any{"rdma": "required"}))
				n.MustRun(call)
				calls, in, names = append(calls, call.With("DEL")), append(in, p.Netns.Netns), append(names, fmt.Sprintf("mlx5_%d", rail))
			}
			n.rotate(in, names)
			c.end(n, calls, pods)
			n.rdmaAll(devices)
			n.untouched(before)
		})
	}
}

// udev names an RDMA device after its driver has made it, perhaps between two steps of an
// ADD. The device returns under that name, and not under one that the pod gives it.
func TestRDMADeviceThatIsRenamedDuringAddReturnsUnderItsNewName(t *testing.T) {
	const name = "rocep0s11"
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	p := n.pod("trainer")
	rename := func(in *netns.Netns, from, to string) error {
		core, err := rdma.Open(in)
		if err != nil {
			return err
		}
		defer core.Close() // it keeps the pod's netns
		d, err := core.ByName(from)
		if err != nil {
			return err
		}
		return core.Rename(d, to)
	}
	at, err := plans.Open(n.state)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	at.Fault = func(step string) error {
		if step != "confirm" {
			return nil
		}
		return rename(n.Netns.Netns, "mlx5_0", name)
	}
	call := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required"}))
	conf, err := netconf.ParseHostDevice([]byte(call.Config))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := at.Add(t.Context(), &attachment.Call{
		Key:   ledger.Key{ContainerID: call.ContainerID, IfName: call.IfName},
		Netns: call.Netns, Path: testnet.Bin(t), Conf: &conf.Common,
	}, plans.HostDevicePlan(conf)); err != nil {
		t.Fatal(err)
	}
	if err := rename(p.Netns.Netns, name, "mine"); err != nil {
		t.Fatal(err)
	}
	n.MustRun(call.With("DEL"))
	if now := n.allRDMA(); !strings.Contains(now[name], nicPCI(0)) {
		t.Errorf("the device did not return as %s: %v", name, now)
	}
}

// A pod with CAP_NET_ADMIN can make a Soft-RoCE device under the name of the lent one, which
// lives on. The lent one must return, and must not keep the name that the pod gave it.
func TestRDMADeviceWhoseNameIsTakenReturnsUnderAFreeOne(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(2)
	p := n.pod("trainer")
	call := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required"}))
	n.MustRun(call)
	rename := func(in *netns.Netns, from, to string) {
		t.Helper()
		core, err := rdma.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer core.Close() // it keeps the pod's netns
		d, err := core.ByName(from)
		if err == nil {
			err = core.Rename(d, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rename(p.Netns.Netns, "mlx5_0", "mine")
	rename(n.Netns.Netns, "mlx5_1", "mlx5_0")
	_, said, err := n.RunSaying(call.With("DEL"))
	if err != nil || !strings.Contains(said, "returned under another name") || !strings.Contains(said, "rdma dev set rail-") {
		t.Errorf("%v: %s", err, said)
	}
	free := ""
	for name, device := range n.allRDMA() {
		if strings.HasPrefix(name, "rail-") && strings.Contains(device, nicPCI(0)) {
			free = name
		}
	}
	if free == "" {
		t.Fatalf("the device has no free name: %v", n.allRDMA())
	}
	rename(n.Netns.Netns, "mlx5_0", "mlx5_1")
	rename(n.Netns.Netns, free, "mlx5_0")
}

// rdmaAll waits until the host has all the RDMA devices that it had before.
func (n *node) rdmaAll(before map[string]string) {
	n.t.Helper()
	var now string
	if !testnet.Within(10*time.Second, func() bool {
		now = fmt.Sprint(n.allRDMA())
		return now == fmt.Sprint(before)
	}) {
		n.t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, before)
	}
}

// The kernel accepts any unused name for an RDMA device, including names that no file
// can have. A pod must not be able to hide its device, or other devices, with one.
func TestRDMADeviceWithInvalidFileNameComesHome(t *testing.T) {
	for _, name := range []string{"..", "a/b"} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%q, pod killed: %v", name, killed), func(t *testing.T) {
				n := newRDMANode(t, rdma.Exclusive, "")
				n.up(2)
				before, devices := n.State(), n.allRDMA()
				hostile, other := n.pod("hostile"), n.pod("other")
				required := map[string]any{"rdma": "required"}
				call := hostile.call("ADD", "net1", n.config(0, required))
				n.MustRun(call)
				core, err := rdma.Open(hostile.Netns.Netns)
				if err != nil {
					t.Fatal(err)
				}
				d, err := core.ByName("mlx5_0")
				if err == nil {
					err = core.Rename(d, name)
				}
				core.Close()
				if err != nil {
					t.Fatal(err)
				}
				if killed {
					hostile.Kill()
					n.fallen([]loan{{hostile, 0, "net1"}})
				} else {
					n.MustRun(call.With("DEL"))
				}
				innocent := other.call("ADD", "net1", n.config(1, required))
				n.MustRun(innocent)
				n.MustRun(innocent.With("DEL"))
				for deadline := time.Now().Add(time.Minute); len(n.records()) > 0 && time.Now().Before(deadline); {
					n.gc()
				}
				n.rdmaAll(devices)
				n.untouched(before)
			})
		}
	}
}
