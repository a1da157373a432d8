//go:build rig

package tests

import (
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// guards are links that make a NIC in use and that a container host's kernel
// may lack.
var guards = map[string]struct {
	commands []string
	text     string // of the refusal's error
	override string
	destroys bool // the move destroys the link on the NIC
}{
	"VLAN": {
		[]string{"link add link NIC name NIC.7 type vlan id 7", "link set NIC.7 up", "addr add 10.7.0.1/24 dev NIC.7"},
		"NIC.7 (vlan)", "children", true,
	},
	"ipvlan": {[]string{"link add link NIC name ipv0 type ipvlan mode l2"}, "ipv0 (ipvlan)", "children", true},
	"ipvtap": {[]string{"link add link NIC name ipt0 type ipvtap mode l2"}, "ipt0 (ipvtap)", "children", true},
	"macvtap": {
		[]string{"link add link NIC name mvt0 type macvtap mode bridge"}, "mvt0 (macvtap)", "children", true,
	},
	"bond": {
		[]string{"link add bond0 type bond mode active-backup", "link set NIC down", "link set NIC master bond0", "link set bond0 up"},
		"it belongs to the bond bond0", "member", false,
	},
	"team": {
		[]string{"link add team0 type team", "link set NIC down", "link set NIC master team0"},
		"it belongs to the team team0", "member", false,
	},
	"VRF": {
		[]string{"link add red type vrf table 77", "link set red up", "link set NIC master red", "addr add 10.9.0.1/24 dev NIC"},
		"it belongs to the vrf red", "member", false,
	},
	"bridge": {
		[]string{"link add br0 type bridge", "link set NIC master br0"}, "it belongs to the bridge br0", "member", false,
	},
}

func TestGuardedNICIsRefusedUnlessAllowed(t *testing.T) {
	for name, g := range guards {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.up(1)
			var made []string
			for _, c := range g.commands {
				made = append(made, strings.ReplaceAll(c, "NIC", nicName(0)))
			}
			n.Batch(nil, made...)
			n.carrier(nicName(0), nicName(0)+".7", "bond0", "red")
			t.Cleanup(func() { n.remove("bond0", "team0", "red", "br0") })
			before, p := n.State(), n.pod("pod1")
			_, err := n.Run(p.call("ADD", "net1", n.config(0, nil)))
			refused(t, err, cnierr.NICProtected, strings.ReplaceAll(g.text, "NIC", nicName(0)), `"allow": ["`+g.override+`"]`)
			n.untouched(before)

			config := n.config(0, map[string]any{"allow": []string{g.override}})
			n.MustRun(p.call("ADD", "net1", config))
			n.MustRun(p.call("DEL", "net1", config))
			if !g.destroys {
				n.untouched(before)
				return
			}
			if l, err := link.ByName(n.Netns.Netns, nicName(0)); err != nil || !l.IsUp() || l.ParentDev != nicPCI(0) {
				t.Errorf("%s: %+v, %v", nicName(0), l, err)
			}
		})
	}
}

// The host does not see a VLAN in a pod, and the pod would lose it.
func TestNICBelowAVLANThatIsLentIsRefused(t *testing.T) {
	n := newNode(t)
	n.up(1)
	vlan := nicName(0) + ".7"
	n.Batch(nil, "link add link "+nicName(0)+" name "+vlan+" type vlan id 7", "link set "+vlan+" up")
	n.carrier(vlan)
	before := n.State()
	first, second := n.pod("pod1"), n.pod("pod2")
	above, below := n.config(0, map[string]any{"device": vlan}), n.config(0, nil)
	n.MustRun(first.call("ADD", "net1", above))
	_, err := n.Run(second.call("ADD", "net1", below))
	refused(t, err, cnierr.NICProtected, "a vlan on it belongs to container pod1", `"allow": ["children"]`)
	if l, err := link.ByName(first.Netns.Netns, "net1"); err != nil || !l.IsUp() {
		t.Errorf("the first pod's net1: %+v, %v", l, err)
	}
	n.MustRun(first.call("DEL", "net1", above))
	n.untouched(before)
	n.IP("link", "del", vlan)
	n.MustRun(second.call("ADD", "net1", below))
	n.MustRun(second.call("DEL", "net1", below))
}

// remove deletes those of these links that exist.
func (n *node) remove(names ...string) {
	for _, name := range names {
		if _, err := link.ByName(n.Netns.Netns, name); err == nil {
			n.IP("link", "del", name)
		}
	}
}

func refused(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) {
		t.Fatalf("no refusal, but: %v", err)
	}
	if said.Code != code {
		t.Errorf("code %d, want %d: %v", said.Code, code, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the refusal does not say %q: %v", text, err)
		}
	}
}

func TestMacvlanOnTheMasterOfAnIPvlanIsRefusedWithTheReason(t *testing.T) {
	n := newNode(t)
	n.up(1)
	n.Batch(nil, "link add link "+nicName(0)+" name ipv0 type ipvlan mode l2")
	t.Cleanup(func() { n.remove("ipv0") })
	before := n.State()
	p := n.pod("pod1")
	c := p.call("ADD", "net1", n.config(0, map[string]any{"type": "macvlan", "device": nil, "master": nicName(0)}))
	c.Plugin = "macvlan"
	_, err := n.Run(c)
	refused(t, err, cnierr.InvalidConfig, nicName(0), "ipvlan")
	n.MustRun(c.With("DEL"))
	n.untouched(before)
}

func TestMacvlanOfAPodThatDiedIsSwept(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	p := n.pod("pod1")
	c := p.call("ADD", "net1", n.config(0, map[string]any{"type": "macvlan", "device": nil, "master": nicName(0)}))
	c.Plugin = "macvlan"
	n.MustRun(c)
	p.Delete()
	n.gc()
	n.untouched(before)
}

// A dummy represents every link without a device: it is destroyed with its pod.
func TestVirtualLinkIsLentAndMayDie(t *testing.T) {
	n := newNode(t)
	n.Batch(nil, "link add dum0 mtu 9000 type dummy", "link set dum0 up")
	t.Cleanup(func() { n.remove("dum0") })
	before := n.State()
	config := n.config(0, map[string]any{"device": "dum0"})
	for _, podDies := range []bool{false, true} {
		p := &pod{testnet.NewNetns(t, "pod"), "pod1"}
		n.MustRun(p.call("ADD", "net1", config))
		if podDies {
			p.Delete()
		}
		n.MustRun(p.call("DEL", "net1", config))
		if !podDies {
			n.untouched(before)
		}
	}
	if left := n.records(); len(left) != 0 {
		t.Errorf("%d records are left", len(left))
	}
}

// Changes by a PF's pod affect the pods of its VFs.
func TestNICWithVirtualFunctionsIsRefusedUnlessAllowed(t *testing.T) {
	n := newNode(t)
	const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
	write(t, physical+"sriov_numvfs", "2")
	t.Cleanup(func() { write(t, physical+"sriov_numvfs", "0") })
	vf := filepath.Base(readLink(t, physical+"virtfn1"))
	before := n.State()
	one, two := n.pod("pod1"), n.pod("pod2")
	function, whole := n.config(0, map[string]any{"device": nil, "deviceID": vf}), n.config(0, map[string]any{"device": pf})
	_, err := n.Run(two.call("ADD", "net1", whole))
	refused(t, err, cnierr.NICProtected, pf, "2 virtual functions", `"allow": ["vfs"]`)
	n.MustRun(one.call("ADD", "net1", function))
	_, err = n.Run(two.call("ADD", "net1", whole))
	refused(t, err, cnierr.NICProtected, vf+" is lent to container pod1, interface net1")
	n.MustRun(one.call("DEL", "net1", function))
	n.untouched(before)
	allowed := n.config(0, map[string]any{"device": pf, "allow": []string{"vfs"}})
	n.MustRun(two.call("ADD", "net1", allowed))
	n.MustRun(two.call("DEL", "net1", allowed))
	n.untouched(before)
}

// The uplink of a NIC in switchdev mode is such a NIC: no key overrides it, and
// the error comes before the RDMA device moves, which would end its users'
// connections.
func TestNICThatTheKernelDoesNotMoveIsRefusedFirst(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "netns_local=1 ")
	n.up(1)
	before, devices := n.State(), n.allRDMA()
	config := n.config(0, map[string]any{"allow": netconf.Overrides})
	_, err := n.Run(n.pod("pod1").call("ADD", "net1", config))
	refused(t, err, cnierr.NICProtected, nicName(0), "netns-local", "devlink dev eswitch set pci/"+nicPCI(0)+" mode legacy")
	n.untouched(before)
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		t.Errorf("RDMA devices: %v, before: %v", now, devices)
	}
	_, err = n.Run(n.pod("pod2").call("ADD", "net1", n.config(0, map[string]any{"rdma": "off"})))
	refused(t, err, cnierr.NICProtected, "netns-local")
}
