//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// child returns the call of ipoib that makes a child of a rail's port for the pod.
func (n *node) child(p *pod, verb string, rail int, more map[string]any) testnet.Call {
	conf := map[string]any{"type": "ipoib", "name": "storage", "device": nil, "master": n.ipoib(rail), "linkTimeout": "20s"}
	maps.Copy(conf, more)
	call := p.call(verb, "net1", n.config(rail, conf))
	call.Plugin = "ipoib"
	return call
}

// at has the pod's address. With a number of its own each pod has one.
func at(number int) map[string]any {
	return map[string]any{"ipam": map[string]any{"type": "static", "addresses": []any{map[string]any{"address": fmt.Sprintf("172.31.1.%d/24", number)}}}}
}

// newChildren returns a node with two ports that carry children of pods, and the subnet manager's.
func newChildren(t *testing.T, m rdma.Mode) (*node, *opensm.Manager) {
	t.Helper()
	n := newRDMANode(t, m, "link_layer=ib slots=11,12,18")
	manager := n.openSM(opensm.OpenFabric)
	n.Batch(nil, "link set "+n.ipoib(0)+" up", "link set "+n.ipoib(1)+" up")
	n.carrier(n.ipoib(0), n.ipoib(1))
	return n, manager
}

// children returns the names of the IPoIB children in a namespace.
func (n *node) children(ns *testnet.Netns) (names []string) {
	n.t.Helper()
	links, err := link.Links(ns.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range links {
		if l.IsIPoIBChild() {
			names = append(names, l.Name)
		}
	}
	return names
}

// noChildren fails the test if a child is left in a namespace.
func (n *node) noChildren(in ...*testnet.Netns) {
	n.t.Helper()
	for _, ns := range append(in, n.Netns) {
		for _, name := range n.children(ns) {
			n.t.Errorf("%s has the child %s", ns.Name, name)
		}
	}
	if records := n.records(); len(records) > 0 {
		n.t.Errorf("records: %+v", records)
	}
}

// TestPodsShareAnInfiniBandPort has twenty pods on two ports, which reach each other by IPv4 and by their
// link-local addresses, and lets each end in another way.
func TestPodsShareAnInfiniBandPort(t *testing.T) {
	const count = 20
	n, _ := newChildren(t, rdma.Shared)
	before := n.State()
	pods, calls := make([]*pod, count), make([]testnet.Call, count)
	locals := map[string]bool{}
	var took time.Duration
	for i := range count {
		pods[i] = n.pod(fmt.Sprintf("pod%d", i+1))
		calls[i] = n.child(pods[i], "ADD", i%2, at(i+1))
		began := time.Now()
		result := n.MustRun(calls[i])
		took += time.Since(began)
		more := at(i + 1)
		more["prevResult"] = json.RawMessage(result)
		n.MustRun(n.child(pods[i], "CHECK", i%2, more))
	}
	t.Logf("%d ADDs took %v", count, took.Round(time.Millisecond))
	for i, p := range pods {
		local := strings.TrimSuffix(strings.Fields(p.IP("-br", "-6", "addr", "show", "net1"))[2], "/64")
		locals[local] = true
		p.Exec("ping", "-c", "1", "-w", "5", fmt.Sprintf("172.31.1.%d", (i+1)%count+1))
		if i%5 == 0 { // a second each: the kernel joins the group of the solicited node first
			pods[i+1].Exec("ping", "-c", "1", "-w", "5", local+"%net1")
		}
	}
	if len(locals) != count {
		t.Errorf("%d link-local addresses of %d pods: %v", len(locals), count, locals)
	}
	// A port that carries children of pods is not lent, whatever the network allows.
	_, err := n.Run(n.pod("other").call("ADD", "net1", n.config(0, map[string]any{"device": n.ipoib(0), "rdma": "off", "allow": netconf.Overrides})))
	refused(t, err, cnierr.NICProtected, n.ipoib(0), "an IPoIB child of it belongs to")
	var living []*testnet.Netns
	for i, p := range pods {
		switch i % 3 {
		case 0:
			p.Kill()
			n.MustRun(calls[i].With("DEL"))
		case 1:
			p.Kill()
		case 2:
			n.MustRun(calls[i].With("DEL"))
			living = append(living, p.Netns)
		}
	}
	n.gc()
	n.untouched(before)
	n.noChildren(living...)
}

// TestPartitionOfAChild has a pod in a partition that the port joins late, and one in the default partition:
// they do not reach each other.
func TestPartitionOfAChild(t *testing.T) {
	n, manager := newChildren(t, rdma.Shared)
	before := n.State()
	in := func(number int, key string) map[string]any {
		more := at(number)
		more["pkey"] = key
		return more
	}
	_, err := n.Run(n.child(n.pod("early"), "ADD", 0, in(7, "0x8002")))
	refused(t, err, cnierr.TryAgain, "is not a member of partition 0x0002", "0xffff")
	_, err = n.Run(n.child(n.pod("early2"), "STATUS", 0, in(7, "0x8002")))
	refused(t, err, 50, "is not a member of partition 0x0002") // of STATUS
	n.untouched(before)
	limited := "blue=0x0003, ipoib, defmember=limited : ALL ;\n"
	if err := manager.SetPartitions(t.Context(), opensm.OpenFabric+"red=0x0002, ipoib, defmember=full : ALL ;\n"+limited); err != nil {
		t.Fatal(err)
	}
	n.eventually("membership", func() bool { return strings.Contains(n.pkeys(0), "0x8002") && strings.Contains(n.pkeys(1), "0x8002") })
	calls := []testnet.Call{
		n.child(n.pod("red1"), "ADD", 0, in(1, "0x2")),
		n.child(n.pod("red2"), "ADD", 1, in(2, "0x8002")),
		n.child(n.pod("white"), "ADD", 1, at(3)),
	}
	for _, call := range calls {
		n.MustRun(call)
	}
	ping := func(from, to int) error {
		return exec.Command("ip", "netns", "exec", filepath.Base(calls[from].Netns), "ping", "-c", "1", "-w", "2", fmt.Sprintf("172.31.1.%d", to+1)).Run()
	}
	if err := ping(0, 1); err != nil {
		t.Errorf("two pods in one partition: %v", err)
	}
	if ping(0, 2) == nil || ping(2, 1) == nil {
		t.Error("pods in different partitions reach each other")
	}
	// A limited member has a carrier, and does not reach other limited members.
	blue := n.child(n.pod("blue"), "ADD", 0, in(8, "0x3"))
	_, said, err := n.RunSaying(blue)
	if err != nil || !strings.Contains(said, "is a limited member of partition 0x0003") {
		t.Errorf("limited: %v, %s", err, said)
	}
	required := in(9, "0x3")
	required["rdma"] = "required"
	_, err = n.Run(n.child(n.pod("blue2"), "ADD", 0, required))
	refused(t, err, cnierr.NotAvailable, "is a limited member of partition 0x0003")
	n.MustRun(blue.With("DEL"))
	for _, call := range calls {
		n.MustRun(call.With("DEL"))
	}
	n.untouched(before)
	n.noChildren()
}

// TestReusedAddressOfAChildIsReachedAtOnce: the kernel's announcement comes before the interface has joined its
// group. A neighbor that knew the address at another queue pair would try that one for some 40 s.
func TestReusedAddressOfAChildIsReachedAtOnce(t *testing.T) {
	n, _ := newChildren(t, rdma.Shared)
	neighbor := n.pod("neighbor")
	n.MustRun(n.child(neighbor, "ADD", 1, at(2)))
	var last testnet.Call
	for i := range 4 {
		if i > 0 {
			n.MustRun(last.With("DEL"))
		}
		last = n.child(n.pod(fmt.Sprintf("pod%d", i)), "ADD", i%2, at(1))
		n.MustRun(last)
		began := time.Now()
		neighbor.Exec("ping", "-c", "1", "-w", "60", "172.31.1.1")
		timing.Check(t, "reached after a change of the holder", time.Since(began), 2*time.Second)
	}
}

// TestSettingsOfAChild: umcast and MTU are those of the network, or the partition's.
func TestSettingsOfAChild(t *testing.T) {
	n, _ := newChildren(t, rdma.Shared)
	master := n.ipoib(0)
	before := n.State()
	for name, c := range map[string]struct {
		more map[string]any
		want func(l *link.Link) bool
	}{
		"by default":    {nil, func(l *link.Link) bool { return !l.IPoIB.Connected() && l.IPoIB.Umcast == 1 && l.MTU == 2044 }},
		"a smaller MTU": {map[string]any{"mtu": 1500, "umcast": false}, func(l *link.Link) bool { return l.IPoIB.Umcast == 0 && l.MTU == 1500 }},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("pod")
			call := n.child(p, "ADD", 0, c.more)
			n.MustRun(call)
			l, err := link.ByName(p.Netns.Netns, "net1")
			if err != nil || !c.want(l) || !l.IsUp() || !l.HasCarrier() {
				t.Errorf("%+v, %+v, %v", l, l.IPoIB, err)
			}
			if r := n.records()[0]; r.MTU != l.MTU || r.Child.Master != master {
				t.Errorf("the record: MTU %d, of the interface %d, master %s", r.MTU, l.MTU, r.Child.Master)
			}
			n.MustRun(call.With("DEL"))
		})
	}
	n.IP("link", "set", master, "down")
	_, err := n.Run(n.child(n.pod("down"), "ADD", 0, nil))
	refused(t, err, cnierr.NotAvailable, master+" is down")
	n.IP("link", "set", master, "up")
	n.carrier(master)
	n.untouched(before)
	n.noChildren()
}

// TestWhatAPodDidToItsChild: a child is found by its permanent address, whatever the pod set.
func TestWhatAPodDidToItsChild(t *testing.T) {
	n, _ := newChildren(t, rdma.Shared)
	before := n.State()
	p, far := n.pod("pod"), testnet.NewNetns(t, "far")
	call := n.child(p, "ADD", 0, at(1))
	change := func() {
		l, err := link.ByName(p.Netns.Netns, "net1")
		if err != nil {
			t.Fatal(err)
		}
		p.Batch(nil, "link set net1 down", "link set net1 mtu 1600 address "+l.MAC.String()[:36]+"02:00:00:00:00:00:00:01",
			"link set net1 name mine", "link set mine up")
	}
	n.MustRun(call)
	change()
	n.MustRun(call.With("DEL"))
	n.noChildren(p.Netns)

	// In another network namespace it is found by its queue pair, and its address is kept.
	n.MustRun(call)
	change()
	p.IP("link", "set", "mine", "netns", far.Name)
	_, err := n.Run(call.With("DEL"))
	refused(t, err, cnierr.NotReturned, "is in a netns that cannot be found")
	if records := n.records(); len(records) != 1 {
		t.Errorf("records: %+v", records)
	}
	far.Kill()
	n.eventually("the child is gone", func() bool { _, err := n.Run(call.With("DEL")); return err == nil })
	n.untouched(before)
	n.noChildren(p.Netns)

	// The pod deleted it, and made another link under its name.
	n.MustRun(call)
	p.Batch(nil, "link del net1", "link add net1 type dummy")
	n.MustRun(call.With("DEL"))
	p.IP("link", "show", "net1")
	n.noChildren(p.Netns)
}

// TestChildrenInExclusiveModeHaveNoRDMA: the RDMA device stays on the host.
func TestChildrenInExclusiveModeHaveNoRDMA(t *testing.T) {
	n, _ := newChildren(t, rdma.Exclusive)
	before, devices := n.State(), n.allRDMA()
	p := n.pod("pod")
	_, err := n.Run(n.child(p, "ADD", 0, map[string]any{"rdma": "required"}))
	refused(t, err, cnierr.NotAvailable, "a pod cannot share the RDMA device")
	call := n.child(p, "ADD", 0, at(1))
	n.MustRun(call)
	other := n.child(n.pod("pod2"), "ADD", 1, at(2))
	n.MustRun(other)
	p.Exec("ping", "-c", "1", "-w", "5", "172.31.1.2")
	// Its move would destroy the child.
	_, err = n.Run(n.pod("thief").call("ADD", "net1", n.config(0, map[string]any{"device": n.ipoib(0), "allow": netconf.Overrides})))
	refused(t, err, cnierr.NICProtected, "an IPoIB child of it belongs to")
	n.MustRun(call.With("DEL"))
	n.MustRun(other.With("DEL"))
	n.untouched(before)
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		t.Errorf("RDMA devices: %v, before: %v", now, devices)
	}
}
