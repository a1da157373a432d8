package testnet

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Rail is a host's netns with one NIC in it, the NIC's switch, and a pod's netns.
type Rail struct {
	Host, Wire, Pod *Netns
}

// NewRail makes a rail whose NIC has this name.
func NewRail(t testing.TB, nic string) *Rail {
	t.Helper()
	r := &Rail{Host: NewNetns(t, "host"), Wire: NewNetns(t, "wire"), Pod: NewNetns(t, "pod")}
	r.Host.NIC(nic, r.Wire)
	return r
}

// NewRailWithDAD makes a rail whose NIC ens1, with this index, detects duplicate addresses.
func NewRailWithDAD(t testing.TB) (r *Rail, index int) {
	t.Helper()
	r = NewRail(t, "ens1")
	r.Host.Sysctl("ipv6/conf/ens1/accept_dad", "1")
	return r, r.Host.Link("ens1").Index
}

// Link returns the link with this name or altname, and fails the test if there is none.
func (n *Netns) Link(name string) *link.Link {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// View returns the view of a link, and fails the test if there is no such link.
func (n *Netns) View(l *link.Link) *link.View {
	n.t.Helper()
	v, err := link.ReadView(n.Netns, l.Index)
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}

// Rails is nodes whose rails are cabled to a bridge for each rail. Rail k of a node is its
// interface net<k+1>, with MTU 9000; the bridge is br<k>.
type Rails struct {
	Nodes  []*Netns
	Fabric *Netns // has the bridges, and the other ends of the cables: see Port
}

// NewRails makes nodes with rails, which are up. address returns the address of an interface,
// with its length; see [RailIPv4].
func NewRails(t testing.TB, nodes, rails int, address func(node, rail int) string) *Rails {
	t.Helper()
	r := &Rails{Fabric: NewNetns(t, "fabric")}
	var commands []string
	for k := range rails {
		commands = append(commands, fmt.Sprintf("link add br%d mtu 9000 type bridge mcast_snooping 0", k), fmt.Sprintf("link set br%d up", k))
	}
	r.Fabric.Batch(nil, commands...)
	for n := range nodes {
		node := NewNetns(t, fmt.Sprintf("n%d", n))
		var inNode, inFabric []string
		for k := range rails {
			inNode = append(inNode,
				fmt.Sprintf("link add net%d mtu 9000 type veth peer name %s mtu 9000 netns %s", k+1, r.Port(n, k), r.Fabric.Name),
				fmt.Sprintf("addr add %s dev net%d", address(n, k), k+1),
				fmt.Sprintf("link set net%d up", k+1))
			inFabric = append(inFabric, fmt.Sprintf("link set %s master br%d up", r.Port(n, k), k))
		}
		node.Batch(nil, inNode...)
		r.Fabric.Batch(nil, inFabric...)
		r.Nodes = append(r.Nodes, node)
	}
	return r
}

// RailIPv4 returns 10.1.<rail>.<node+1>/24.
func RailIPv4(node, rail int) string { return fmt.Sprintf("10.1.%d.%d/24", rail, node+1) }

// RailIPv6 returns fd00::<rail>:0:0:0:<node+1>/64.
func RailIPv6(node, rail int) string { return fmt.Sprintf("fd00:0:0:%x::%x/64", rail, node+1) }

// Port returns the name of the bridge's port of a rail: n<node>r<rail>.
func (r *Rails) Port(node, rail int) string { return fmt.Sprintf("n%dr%d", node, rail) }

// Drop drops one of so many packets that leave by a link, at random, on a kernel without
// netem. The function that it returns ends that.
func (n *Netns) Drop(name string, oneOf int) (end func()) {
	n.t.Helper()
	const randomNumber = 7 // BPF_FUNC_get_prandom_u32
	return n.egress(name,
		instruction(0x85, 0, 0, randomNumber),  // r0 = random
		instruction(0x97, 0, 0, uint32(oneOf)), // r0 %= oneOf
		instruction(0x15, 0, 2, 0),             // if r0 == 0 goto drop
		instruction(0xb7, 0, 0, 0),             // r0 = TC_ACT_OK
		instruction(0x95, 0, 0, 0),             // exit
		instruction(0xb7, 0, 0, 2),             // drop: r0 = TC_ACT_SHOT
		instruction(0x95, 0, 0, 0))
}

// Slow makes the processor spend the better part of a millisecond on each packet that leaves
// by a link, on a kernel without netem. The function that it returns ends that.
func (n *Netns) Slow(name string) (end func()) {
	n.t.Helper()
	const (
		turns = 20_000
		clock = 5      // BPF_FUNC_ktime_get_ns, which takes some 30 ns
		back  = 0xfffd // −3
	)
	return n.egress(name,
		instruction(0xb7, 7, 0, turns), // r7 = turns
		instruction(0x85, 0, 0, clock), // loop: read the clock
		instruction(0x17, 7, 0, 1),     // r7 -= 1
		instruction(0x55, 7, back, 0),  // if r7 != 0 goto loop
		instruction(0xb7, 0, 0, 0),     // r0 = TC_ACT_OK
		instruction(0x95, 0, 0, 0))     // exit
}

// instruction returns one of a BPF program (struct bpf_insn).
func instruction(code, register, offset uint16, immediate uint32) []byte {
	return words(uint32(code)|uint32(register)<<8|uint32(offset)<<16, immediate)
}

// egress attaches a program to what leaves by a link (tcx, Linux 6.6).
func (n *Netns) egress(name string, program ...[]byte) (end func()) {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	var fd int
	n.Inside(func() {
		loaded := n.loadCode(progSchedCls, program...)
		fd = n.bpf(bpfLinkCreate, words(uint32(loaded), uint32(l.Index), attachTCXOut, 0, 0, 0, 0, 0))
		_ = unix.Close(loaded)
	})
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = unix.Close(fd) // the kernel detaches it
		}
	}
	n.t.Cleanup(end)
	return end
}
