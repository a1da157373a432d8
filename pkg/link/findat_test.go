package link_test

import (
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// A NIC has left the pod's netns, and the kernel assigned its index there to
// another link of the same kind. That link must not be mistaken for the NIC.
func TestIndexAloneDoesNotIdentifyTheNIC(t *testing.T) {
	ns := testnet.NewNetns(t, "pod")
	ns.IP("link", "add", "net1", "type", "ifb")
	n, err := netns.Open("/run/netns/" + ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	l, err := link.ByName(n, "net1")
	if err != nil {
		t.Fatal(err)
	}
	virtual := l.Identity()
	for name, c := range map[string]struct {
		change func(*link.Identity)
		want   bool
	}{
		"itself, with another MAC": {func(id *link.Identity) { id.MAC = "02:00:00:00:00:99" }, true},
		"another kind":             {func(id *link.Identity) { id.Kind = "macvlan" }, false},
		"a device's":               {func(id *link.Identity) { id.ParentDev = "0000:3b:00.0" }, false},
		"of another bus":           {func(id *link.Identity) { id.ParentBus = "auxiliary" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			id := virtual
			c.change(&id)
			found, err := link.FindAt(n, l.Index, id, "net1")
			if err != nil || (found != nil) != c.want {
				t.Errorf("found %+v, %v; it is the NIC: %v", found, err, c.want)
			}
		})
	}
}

// The NIC has left the pod's netns, and the pod has made a veth with its MAC, its
// name and its alias.
func TestLinkWithANICsMACAndNameIsNotTheNIC(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	hidden := testnet.NewNetns(t, "hidden")
	r.Pod.IP("link", "add", "filler", "type", "ifb") // this link has the index that the NIC had on the host
	lent := r.Host.Link("ens1")
	if err := link.Move(r.Host.Netns, lent.Index, r.Pod.Netns, "net1", "ens1"); err != nil {
		t.Fatal(err)
	}
	index := r.Pod.Link("net1").Index
	if found, err := link.FindAt(r.Pod.Netns, index, lent.Identity(), "net1", "ens1"); err != nil || found == nil {
		t.Fatalf("the NIC itself: %v, %v", found, err)
	}
	moved := lent.Identity()
	moved.Lower++ // as if its peer had moved, and got another index
	if found, err := link.FindAt(r.Pod.Netns, index, moved, "net1", "ens1"); err != nil || found == nil {
		t.Fatalf("the NIC itself, its peer has moved: %v, %v", found, err)
	}
	if err := link.Move(r.Pod.Netns, index, hidden.Netns, "net1", ""); err != nil {
		t.Fatal(err)
	}
	r.Pod.IP("link", "add", "net1", "address", lent.MAC.String(), "type", "veth", "peer", "name", "other")
	r.Pod.IP("link", "set", "net1", "alias", "ens1")
	if found, err := link.FindAt(r.Pod.Netns, index, lent.Identity(), "net1", "ens1"); err != nil || found != nil {
		t.Errorf("found %+v, %v", found, err)
	}

	id := lent.Identity()
	id.Lower = r.Pod.Link("other").Index // the pod can make a peer that has the index of the NIC's peer
	if found, err := link.FindAt(r.Pod.Netns, index, id, "net1", "ens1"); err != nil || found != nil {
		t.Errorf("a peer in the pod that has the index of the NIC's: found %+v, %v", found, err)
	}
	id.Lower = 0 // the link had no peer
	if found, err := link.FindAt(r.Pod.Netns, index, id, "net1", "ens1"); err != nil || found == nil {
		t.Errorf("without the index of the peer: %+v, %v", found, err)
	}
}
