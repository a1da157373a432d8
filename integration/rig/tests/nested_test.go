//go:build rig

package tests

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// nested makes a node whose host netns is not init_net, like that of a runtime
// in a container (kind, k3d): the kernel does not return NICs there when a pod
// dies.
func nested(t *testing.T) *node {
	t.Helper()
	here := newNode(t)
	inner := testnet.NewNetns(t, "node")
	inner.Sysctl("ipv6/conf/default/router_solicitations", "0")
	var commands []string
	for rail := range rails {
		commands = append(commands, "link set "+nicName(rail)+" netns "+inner.Name)
	}
	here.Batch(nil, append(commands, "link set "+here.spare+" netns "+inner.Name)...)
	return &node{t: t, Netns: inner, initNet: here.initNet, spare: here.spare, state: filepath.Join(t.TempDir(), "state")}
}

func TestNICsComeHomeToAHostNetnsThatIsNotInitNet(t *testing.T) {
	for way, home := range ways(t) {
		t.Run(way, func(t *testing.T) {
			n := nested(t)
			n.furnish(rails)
			initNet := n.initNet.State()
			dieAndComeHome(t, n, rounds(t, 1), func(n *node) []loan {
				p := n.pod("pod1")
				// One of the names is taken in init_net.
				return []loan{{p, 0, "net1"}, {p, 1, "enp1s0np0"}}
			}, home)
			if d := n.initNet.Settled(initNet); d != "" {
				t.Errorf("init_net is not as it was:\n%s", d)
			}
		})
	}
}

// If the nested node dies before its pod, only init_net is left for the NIC.
func TestNICOfADeadNodeIsNotLost(t *testing.T) {
	n := nested(t)
	n.up(1)
	p := n.pod("pod1")
	n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
	n.Kill()
	n.initNet.Exec("true") // the node's end takes a moment
	outer := &node{t: t, Netns: n.initNet, initNet: n.initNet, state: n.state}
	outer.MustRun(p.call("DEL", "net1", n.config(0, nil)))
	l, err := link.ByName(n.initNet.Netns, nicName(0))
	if err != nil || !l.IsUp() || l.MTU != 9000 || l.ParentDev != nicPCI(0) {
		t.Errorf("%s in init_net: %+v, %v\n%s", nicName(0), l, err, strings.TrimSpace(n.initNet.IP("-br", "link")))
	}
	if left := outer.records(); len(left) != 0 {
		t.Errorf("%d records are left", len(left))
	}
}

// The kernel keeps a VLAN or an ipvlan on a NIC that moves to another
// namespace: the pod could go on receiving and sending with it.
func TestLinksOnANICEndWithItsLoan(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	for _, kind := range []string{"vlan id 7", "ipvlan mode l2"} {
		t.Run(kind, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("pod1")
			call := p.call("ADD", "net1", n.config(0, nil))
			n.MustRun(call)
			p.Batch(nil, "link add link net1 name upper type "+kind, "link set upper up")
			n.MustRun(call.With("DEL"))
			if p.Has("upper") {
				t.Errorf("the pod still has its link on the NIC:\n%s", p.IP("-d", "link"))
			}
			n.untouched(before)
		})
	}
}
