//go:build rig

package tests

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// loan is one NIC in one pod.
type loan struct {
	*pod
	rail   int
	ifName string
}

// scenarios are pods that die with NICs in them.
func scenarios() map[string]struct {
	rounds int
	lend   func(*node) []loan
} {
	return map[string]struct {
		rounds int
		lend   func(*node) []loan
	}{
		"one NIC": {2, func(n *node) []loan { return []loan{{n.pod("pod1"), 0, "net1"}} }},
		"eight NICs": {1, func(n *node) []loan {
			p := n.pod("pod1")
			var all []loan
			for rail := range rails {
				all = append(all, loan{p, rail, podName(rail)})
			}
			return all
		}},
		// The host already has a link with the name that the NIC has in its
		// pod, so the kernel uses dev<index>.
		"named like links of the host": {1, func(n *node) []loan {
			p := n.pod("pod1")
			return []loan{{p, 0, nicName(2)}, {p, 1, altName(3)}}
		}},
		// Each NIC returns with the name that another one needs.
		"named like each other": {1, func(n *node) []loan {
			p, q := n.pod("pod1"), n.pod("pod2")
			return []loan{{p, 0, nicName(1)}, {p, 1, nicName(0)}, {p, 2, nicName(3)}, {q, 3, nicName(4)}, {q, 4, nicName(2)}}
		}},
		// Both have the same free name: which of them gets it is a race.
		"two pods together": {1, func(n *node) []loan {
			return []loan{{n.pod("pod1"), 0, "net1"}, {n.pod("pod2"), 1, "net1"}}
		}},
	}
}

// ways are the means that return NICs after their pods' death, each alone; in "make test" two of
// them.
func ways(t *testing.T) map[string]func(*node, []loan) {
	t.Helper()
	return need.SampleMap(t, 2, map[string]func(*node, []loan){
		"DEL": func(n *node, loans []loan) {
			for _, l := range loans {
				n.MustRun(l.call("DEL", l.ifName, n.config(l.rail, nil)))
			}
		},
		// Neither of these waits for NICs that have not arrived yet.
		"sweep": func(n *node, loans []loan) {
			n.fallen(loans)
			p := n.pod("other")
			other := n.config(0, map[string]any{"device": n.spare})
			n.MustRun(p.call("ADD", "net1", other))
			if left := n.records(); len(left) != 1 || left[0].ContainerID != p.container {
				n.t.Errorf("the sweep of an ADD left %d records", len(left))
			}
			n.MustRun(p.call("DEL", "net1", other))
		},
		"railctl gc": func(n *node, loans []loan) {
			n.fallen(loans)
			n.gc()
		},
	})
}

func TestNICsOfDeadPodsComeHome(t *testing.T) {
	for name, s := range need.SampleMap(t, 2, scenarios()) {
		t.Run(name, func(t *testing.T) {
			// Each round leaves the node as it was, so all rounds can share
			// one.
			n := newNode(t)
			n.furnish(rails)
			for way, home := range ways(t) {
				if !t.Run(way, func(t *testing.T) { dieAndComeHome(t, n.in(t), rounds(t, s.rounds), s.lend, home) }) {
					return
				}
			}
		})
	}
}

// dieAndComeHome lends NICs, kills their pods, returns the NICs, and checks
// that the node is as before; for rounds rounds.
func dieAndComeHome(t *testing.T, n *node, rounds int, lend func(*node) []loan, home func(*node, []loan)) {
	t.Helper()
	before := n.State()
	var took times
	count := 0
	for range rounds {
		loans := lend(n)
		count = len(loans)
		for _, l := range loans {
			n.MustRun(l.call("ADD", l.ifName, n.config(l.rail, nil)))
		}
		died := time.Now()
		kill(loans)
		home(n, loans)
		took = append(took, time.Since(died))
		n.untouched(before)
	}
	t.Logf("from the pods' death to %d NICs at home as they were: %v", count, took)
}

// kill ends the pods, and thereby their netns.
func kill(loans []loan) {
	dead := map[*testnet.Netns]bool{}
	for _, l := range loans {
		if !dead[l.Netns] {
			dead[l.Netns] = true
			l.Kill()
		}
	}
}

// The kernel's own time, for comparison.
func TestKernelBringsNICsBackToInitNet(t *testing.T) {
	n := newNode(t)
	n.up(rails)
	for _, count := range []int{1, rails} {
		var took times
		for range rounds(t, 3) {
			p := n.pod("pod1")
			var loans []loan
			var moves []string
			for rail := range count {
				moves = append(moves, "link set "+nicName(rail)+" netns "+p.Name)
				loans = append(loans, loan{p, rail, nicName(rail)})
			}
			n.Batch(nil, moves...)
			died := time.Now()
			kill(loans)
			n.fallen(loans)
			took = append(took, time.Since(died))
		}
		t.Logf("from the pod's death to %d NICs in init_net: %v", count, took)
	}
}

// TestNICsOfSlowDriversComeHome has drivers that take a second to move an RDMA device, and
// another to close a NIC. Seven NICs are in a pod that dies, and one is in a pod that dies
// soon after it, whose devices the kernel returns last: no DEL fails, all DELs together
// stay below the runtime's limit, and the agent reports no error.
func TestNICsOfSlowDriversComeHome(t *testing.T) {
	const limit = time.Minute // half of the kubelet's for StopPodSandbox
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(rails)
	before, devices := n.State(), n.allRDMA()
	for _, way := range []string{"DEL", "rail-agent"} {
		t.Run(way, func(t *testing.T) {
			n := n.in(t)
			if way == "rail-agent" {
				n.keep() // fails the test if the agent warns
			}
			first, second := n.pod("pod1"), n.pod("pod2")
			var loans []loan
			for rail := range rails {
				p := first
				if rail == rails-1 {
					p = second
				}
				loans = append(loans, loan{p, rail, podName(rail)})
				n.MustRun(p.call("ADD", podName(rail), n.config(rail, nil)))
			}
			setDriver(t, "move_delay_ms", "500") // for each half
			setDriver(t, "stop_ms", "1000")
			died := time.Now()
			first.Kill()
			time.Sleep(500 * time.Millisecond)
			second.Kill()
			if way == "DEL" {
				for _, l := range slices.Backward(loans) {
					n.MustRun(l.call("DEL", l.ifName, n.config(l.rail, nil)))
				}
			}
			testnet.Within(limit-time.Since(died), func() bool { return len(n.records()) == 0 })
			took := time.Since(died)
			if took > limit {
				t.Errorf("the NICs returned after %v", took)
			}
			setDriver(t, "move_delay_ms", "0")
			setDriver(t, "stop_ms", "0")
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("the RDMA devices were %v, and are %v", devices, now)
			}
			t.Logf("from the pods' death to %d NICs at home: %v", rails, took)
		})
	}
}

// TestReturnIsAwaitedAsLongAsTheDriverNeeds has a driver that needs longer for an RDMA device
// than a DEL usually waits: RDMA-CM serves the device only seconds after it is on the host
// again, and until then its settings cannot be restored. DEL waits, because ADD measured the
// moves.
func TestReturnIsAwaitedAsLongAsTheDriverNeeds(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	cm := newConfigfs(t, "mlx5_0")
	cm.set("default_roce_tos", "106")
	before, devices := n.State(), n.allRDMA()
	pod, config := n.pod("pod1"), n.config(0, nil)
	setDriver(t, "move_delay_ms", "6500") // the kernel needs it twice for ADD, and once for the return
	n.MustRun(pod.call("ADD", "net1", config))
	pod.Kill()
	died := time.Now()
	n.MustRun(pod.call("DEL", "net1", config))
	t.Logf("from the pod's death to the end of DEL: %v", time.Since(died))
	setDriver(t, "move_delay_ms", "0")
	n.untouched(before)
	cm.want("after DEL", "106", "RoCE v2")
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		t.Errorf("the RDMA devices were %v, and are %v", devices, now)
	}
}

func TestNICOfAPodThatJustDiedIsWaitedFor(t *testing.T) {
	n := newNode(t)
	n.furnish(1)
	before := n.State()
	var took times
	for range rounds(t, 3) {
		first, second := n.pod("pod1"), n.pod("pod2")
		config := n.config(0, nil)
		n.MustRun(first.call("ADD", "net1", config))
		first.Kill()
		died := time.Now()
		n.MustRun(second.call("ADD", "net1", config))
		took = append(took, time.Since(died))
		if l, err := link.ByName(second.Netns.Netns, "net1"); err != nil || l.ParentDev != nicPCI(0) || !l.IsUp() {
			t.Errorf("the second pod's net1 is %+v, %v", l, err)
		}
		n.MustRun(second.call("DEL", "net1", config))
		n.untouched(before)
		// The runtime may end the first attachment late.
		n.MustRun(first.call("DEL", "net1", config))
		n.untouched(before)
	}
	t.Logf("from the first pod's death to the second having the NIC: %v", took)
}

// TestAddressStaysWithANICThatCannotBeFound has a pod whose netns only a socket
// keeps alive, like that of a connection that is not closed yet: this kernel
// shows no way to it, and the NIC in it still answers.
func TestAddressStaysWithANICThatCannotBeFound(t *testing.T) {
	n := newNode(t)
	n.furnish(2)
	before := n.State()
	ipam := map[string]any{"ipam": map[string]any{"type": "whereabouts", "range": "172.31.9.0/24"}}
	first, second := n.pod("pod1"), n.pod("pod2")
	lent, other := n.config(0, ipam), n.config(1, ipam)
	n.MustRun(first.call("ADD", "net1", lent))
	var socket int
	if err := first.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	first.Kill()
	if _, err := n.Run(first.call("DEL", "net1", lent)); cnierr.Code(err) != cnierr.NotReturned {
		t.Errorf("DEL: %v", err)
	}
	if result := n.MustRun(second.call("ADD", "net1", other)); !bytes.Contains(result, []byte("172.31.9.2/24")) {
		t.Errorf("the next pod has %s", result)
	}
	n.MustRun(second.call("DEL", "net1", other))
	if err := unix.Close(socket); err != nil {
		t.Fatal(err)
	}
	n.MustRun(first.call("DEL", "net1", lent))
	third := n.pod("pod3")
	if result := n.MustRun(third.call("ADD", "net1", other)); !bytes.Contains(result, []byte("172.31.9.1/24")) {
		t.Errorf("the address is not free: %s", result)
	}
	n.MustRun(third.call("DEL", "net1", other))
	n.untouched(before)
}

// A pod renames its NIC to a name that another NIC needs, and moves the NIC to a
// netns of the pod's own that ends. The kernel moves the NIC to the host while the pod goes on running.
// The other NIC must still return.
func TestNICThatReturnedFromRunningPodDoesNotBlockOthers(t *testing.T) {
	for what, taken := range map[string][]string{
		"name":                      {"link set net1 name " + nicName(1)},
		"altname":                   {"link property add dev net1 altname " + altName(1)},
		"altname, and its own name": {"link set net1 name " + nicName(0), "link property add dev " + nicName(0) + " altname " + altName(1)},
		"name and altname":          {"link set net1 name " + nicName(1), "link property add dev " + nicName(1) + " altname " + altName(1)},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			n.up(2)
			before := n.State()
			hostile, other := n.pod("hostile"), n.pod("other")
			call := hostile.call("ADD", "net1", n.config(0, nil))
			innocent := other.call("ADD", "net1", n.config(1, nil))
			n.MustRun(call)
			n.MustRun(innocent)
			nested := testnet.NewNetns(t, "nested")
			hostile.Batch(nil, "link set net1 down", "link set net1 netns "+nested.Name)
			nested.Batch(nil, taken...)
			nested.Kill()
			n.fallen([]loan{{hostile, 0, "net1"}})
			n.MustRun(innocent.With("DEL"))
			if l, err := link.ByName(n.Netns.Netns, nicName(1)); err != nil || l.ParentDev != nicPCI(1) {
				t.Errorf("%s on the host is %+v, %v", nicName(1), l, err)
			}
			if left := n.records(); len(left) != 1 || left[0].ContainerID != hostile.container {
				t.Errorf("%d records are left", len(left))
			}
			n.MustRun(call.With("DEL"))
			n.untouched(before)
		})
	}
}

// A meta plugin calls the DELs of a pod one after another, and the runtime allows all of
// them one time together.
func TestNICsOfALivingPodReturnInTimeFromSlowDrivers(t *testing.T) {
	const ofOne, ofAll = 15 * time.Second, time.Minute // a sandbox has about four minutes
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(rails)
	before := n.State()
	p := n.pod("pod")
	for rail := range rails {
		n.MustRun(p.call("ADD", podName(rail), n.config(rail, map[string]any{"rdma": "required"})))
	}
	setDriver(t, "stop_ms", "1000")
	all := time.Now()
	for rail := rails - 1; rail >= 0; rail-- {
		began := time.Now()
		_, said, err := n.RunSaying(p.call("DEL", podName(rail), n.config(rail, map[string]any{"rdma": "required"})))
		if err != nil || said != "" {
			t.Errorf("DEL of %s: %v, %s", podName(rail), err, said)
		}
		if took := time.Since(began); took > ofOne {
			t.Errorf("DEL of %s took %v", podName(rail), took)
		}
	}
	if took := time.Since(all); took > ofAll {
		t.Errorf("the DELs took %v", took)
	}
	setDriver(t, "stop_ms", "0")
	n.untouched(before)
}
