package plans_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// A macvlan that the pod makes on its NIC would receive the next pod's traffic. While
// it has an XDP program, the NIC's own cannot be detached.
func TestLinksOnThePodsNICEndWithTheAttachment(t *testing.T) {
	t.Parallel()
	for name, does := range map[string]func(*bench){
		"a macvlan": func(*bench) {},
		"a macvlan on a macvlan": func(b *bench) {
			b.pod.IP("link", "add", "link", "on0", "name", "on1", "type", "macvlan", "mode", "bridge")
		},
		"with an XDP program, beside the NIC's": func(b *bench) {
			b.pod.Attach("net1", "xdp native")
			b.pod.Attach("on0", "xdp generic")
		},
		"and takes the NIC to the host": func(b *bench) {
			b.pod.Attach("net1", "xdp native")
			b.pod.Attach("on0", "xdp generic")
			b.pod.IP("link", "set", "net1", "netns", b.node.Name)
		},
		"many": func(b *bench) {
			b.pod.Batch(nil, each(300, "link add link net1 name c%d-%d type macvlan mode bridge")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.wire.IP("link", "set", nicName+"-sw", "mtu", "1500") // a veth refuses XDP programs if the MTU of its peer is larger
			before, attributes, empty := b.node.State(), b.node.Attributes(nicName), b.pod.State()
			config := b.config(nil)
			b.node.MustRun(b.call("ADD", config))
			b.pod.IP("link", "add", "link", "net1", "name", "on0", "up", "type", "macvlan", "mode", "bridge")
			does(b)
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
			b.sameAttributes(attributes)
			if d := b.pod.Settled(empty); d != "" {
				t.Errorf("the pod has more than before its NIC:\n%s", d)
			}
		})
	}
}

// The pod may do so before its ADD has ended.
func TestLinksOnThePodsNICEndWithAnADDThatFails(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"netdev", "address", "interface", "gids"} {
		t.Run(step, func(t *testing.T) {
			b := newBench(t)
			before, empty := b.node.State(), b.pod.State()
			call, plan := b.inProcess("host-device", nil)
			n, errLate := b.open(), errors.New("too late")
			n.Fault = func(at string) error {
				if at != step {
					return nil
				}
				b.pod.IP("link", "add", "link", "net1", "name", "on0", "type", "macvlan", "mode", "bridge")
				return errLate
			}
			if _, err := n.Add(t.Context(), call, plan); !errors.Is(err, errLate) {
				t.Fatal(err)
			}
			b.untouched(before)
			if d := b.pod.Settled(empty); d != "" {
				t.Errorf("the pod has more than before its NIC:\n%s", d)
			}
		})
	}
}

// The pod's own veth refers to its peer by the same attribute by which a macvlan refers to
// its NIC.
func TestVethWithTheNICsIndexAsItsPeerStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	b.pod.IP("link", "add", "own0", "type", "veth", "peer", "name", "own1")
	b.pod.IP("link", "add", "link", "own0", "name", "on-own", "type", "macvlan", "mode", "bridge")
	b.node.MustRun(b.call("DEL", config))
	for _, name := range []string{"own0", "own1", "on-own"} {
		if !b.pod.Has(name) {
			t.Errorf("the pod's %s is gone", name)
		}
	}
}

// Links that another plugin, or rail-cni, put on the NIC are not the pod's to lose.
func TestALinkThatLayOnTheNICBeforeStays(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"DEL": false, "ADD that fails": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.node.IP("link", "add", "link", nicName, "name", "other0", "type", "macvlan", "mode", "bridge")
			b.node.IP("link", "set", "other0", "netns", b.pod.Name)
			keys := map[string]any{}
			if fails {
				keys["ipam"] = map[string]any{"type": "no-such-plugin"}
			}
			config := b.config(keys)
			if _, err := b.node.Run(b.call("ADD", config)); (err != nil) != fails {
				t.Fatal(err)
			}
			b.node.MustRun(b.call("DEL", config))
			if !b.pod.Has("other0") {
				t.Error("the pod's link of another plugin is gone")
			}
		})
	}
}

// TestMacvlanAttachmentOnThePodsNICStays has an attachment of its own on the pod's NIC, beside a macvlan
// that the pod made. It ends with its own DEL.
func TestMacvlanAttachmentOnThePodsNICStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	lent := b.call("ADD", b.config(nil))
	b.node.MustRun(lent)
	child := b.call("ADD", b.macvlanConfig(map[string]any{"master": "net1", "linkInContainer": true, "ipam": localIPAM("172.31.1.0/24")}))
	child.IfName = "net2"
	b.node.MustRun(child)
	b.pod.IP("link", "add", "link", "net1", "name", "on0", "type", "macvlan", "mode", "bridge")
	b.node.MustRun(lent.With("DEL"))
	if own, made := b.pod.Has("net2"), b.pod.Has("on0"); !own || made {
		t.Errorf("the attachment's macvlan is there: %v; the pod's is: %v", own, made)
	}
	b.node.MustRun(child.With("DEL"))
	b.untouched(before)
}

// A netns may have another link of the NIC's index below.
func TestALinkOnALinkOfTheSameIndexElsewhereStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	b.pod.IP("link", "set", "net1", "netns", b.node.Name) // so that DEL searches for its stacked links there
	index, err := b.node.Index("net1")
	if err != nil {
		t.Fatal(err)
	}
	third := testnet.NewNetns(t, "third")
	third.IP("link", "add", "under0", "index", strconv.Itoa(index), "type", "ifb")
	third.IP("link", "add", "link", "under0", "name", "on-third", "type", "macvlan", "mode", "bridge")
	third.IP("link", "set", "on-third", "netns", b.pod.Name)
	b.node.MustRun(b.call("DEL", config))
	if !b.pod.Has("on-third") {
		t.Error("a link on another netns' link is gone")
	}
}
