package link_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

func names(t *testing.T, n *testnet.Netns) []string {
	t.Helper()
	links, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range links {
		if l.Name != "lo" {
			found = append(found, l.Name)
		}
	}
	slices.Sort(found)
	return found
}

func TestMoveRenamesAndKeepsWhatIsTheLinksOwn(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	r.Host.IP("link", "set", "ens1", "mtu", "8000", "txqueuelen", "321", "address", "02:00:00:00:00:17", "group", "9", "promisc", "on")
	r.Host.IP("link", "property", "add", "dev", "ens1", "altname", "enp4s0np0")
	before := r.Host.Link("ens1")

	if err := link.Move(r.Host.Netns, before.Index, r.Pod.Netns, "net1", "ens1"); err != nil {
		t.Fatal(err)
	}
	if left := names(t, r.Host); len(left) != 0 {
		t.Errorf("still on the host: %q", left)
	}
	after := r.Pod.Link("net1")
	want := *before
	want.Name, want.Alias = "net1", "ens1"
	// The changes of the move itself.
	want.Flags &^= unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	want.OperUp = false
	want.Lower, want.LowerInOtherNetns = after.Lower, after.LowerInOtherNetns
	if !sameLink(after, &want) {
		t.Errorf("after the move\n got %+v\nwant %+v", *after, want)
	}
	if !after.SettableFlags().Promisc {
		t.Error("promiscuous mode was lost: Restore need not know, but a pod would")
	}
}

func sameLink(a, b *link.Link) bool {
	return a.Index == b.Index && a.Name == b.Name && slices.Equal(a.AltNames, b.AltNames) && a.Alias == b.Alias &&
		a.Kind == b.Kind && a.MTU == b.MTU && a.TxQueueLen == b.TxQueueLen && a.Group == b.Group &&
		slices.Equal(a.MAC, b.MAC) && a.Flags == b.Flags && a.Master == b.Master && a.OperUp == b.OperUp
}

// TestRefusedMove checks the kernel's behavior if a name is taken in the target. Observed on Linux
// 6.18: the kernel notices a taken name after the move, unless the name is the link's own. It
// notices a taken altname before the move.
func TestRefusedMove(t *testing.T) {
	taken := func(r *testnet.Rail) { r.Pod.IP("link", "add", "net1", "type", "ifb") }
	takenAlt := func(r *testnet.Rail) {
		r.Host.IP("link", "property", "add", "dev", "ens1", "altname", "enp4s0np0")
		r.Pod.IP("link", "add", "other", "type", "ifb")
		r.Pod.IP("link", "property", "add", "dev", "other", "altname", "enp4s0np0")
	}
	move := func(from *netns.Netns, l *link.Link, to *netns.Netns, name, alias string) error {
		return link.Move(from, l.Index, to, name, alias)
	}
	for _, c := range []struct {
		name  string
		given func(r *testnet.Rail)
		move  func(from *netns.Netns, l *link.Link, to *netns.Netns, name, alias string) error
		inPod bool
	}{
		{"name", taken, move, true},
		{"altname", takenAlt, move, false},
		{"name, renamed first", taken, link.MoveAs, false},
		{"altname, renamed first", takenAlt, link.MoveAs, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			c.given(r)
			l := r.Host.Link("ens1")
			err := c.move(r.Host.Netns, l, r.Pod.Netns, "net1", "the alias")
			if !errors.Is(err, unix.EEXIST) {
				t.Fatalf("error %v, want EEXIST", err)
			}
			where, not := r.Host, r.Pod
			if c.inPod {
				where, not = r.Pod, r.Host
			}
			found, err := link.Find(where.Netns, l.Identity(), "ens1")
			if err != nil || found == nil {
				t.Fatalf("host has %q, pod has %q: found %v, %v", names(t, r.Host), names(t, r.Pod), found, err)
			}
			if found.Name != "ens1" || found.IsUp() == c.inPod {
				t.Errorf("it is %q, up %v", found.Name, found.IsUp())
			}
			if there, err := link.Find(not.Netns, l.Identity(), "ens1"); there != nil || err != nil {
				t.Errorf("and it is on the other side too: %+v, %v", there, err)
			}
		})
	}
}

func TestMoveAsShowsTheTargetOnlyTheNewName(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	l := r.Host.Link("ens1")
	if err := link.Move(r.Host.Netns, l.Index, r.Pod.Netns, "net1", "ens1"); err != nil {
		t.Fatal(err)
	}
	heard := listen(t, r.Host)
	if err := link.MoveAs(r.Pod.Netns, l, r.Host.Netns, "ens1", ""); err != nil {
		t.Fatal(err)
	}
	if got := heard(); len(got) == 0 || slices.ContainsFunc(got, func(s string) bool { return s != "ens1" }) {
		t.Errorf("listeners on the host heard of %q, want ens1 only", got)
	}
	if got := r.Host.Link("ens1"); got.Alias != "" || got.Index != l.Index {
		t.Errorf("it came as %+v", got)
	}
}

// listen records the link names that the kernel announces in the namespace from now on. heard
// returns the names up to its call.
func listen(t *testing.T, n *testnet.Netns) (heard func() []string) {
	t.Helper()
	ns, err := vnetns.GetFromPath("/run/netns/" + n.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	updates, done := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	if err := netlink.LinkSubscribeAt(ns, updates, done); err != nil {
		t.Fatal(err)
	}
	return func() []string {
		// The last announcement: all earlier ones have been received.
		n.IP("link", "add", "last-word", "type", "ifb")
		var names []string
		for u := range updates {
			if u.Attrs().Name == "last-word" {
				close(done)
				return names
			}
			names = append(names, u.Attrs().Name)
		}
		t.Fatal("the subscription ended")
		return nil
	}
}

func TestMoveToANamespaceThatIsTheSame(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	l := r.Host.Link("ens1")
	if err := link.MoveAs(r.Host.Netns, l, r.Host.Netns, "ens1", "x"); err != nil {
		t.Fatal(err)
	}
	if got := r.Host.Link("ens1"); !got.IsUp() || got.Alias != "x" {
		t.Errorf("a move to where it is: %+v", got)
	}
}

func TestMoveOfALinkThatIsGone(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	gone := &link.Link{Index: 4711, Name: "ens1"}
	for name, err := range map[string]error{
		"Move":   link.Move(r.Host.Netns, gone.Index, r.Pod.Netns, "net1", ""),
		"MoveAs": link.MoveAs(r.Host.Netns, gone, r.Pod.Netns, "net1", ""),
	} {
		if !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFindKnowsALinkWithoutAParentByTwoOfThree(t *testing.T) {
	const mac = "02:00:00:00:00:17"
	for _, c := range []struct {
		name  string
		given func(pod *testnet.Netns)
		found bool
	}{
		{"as it was", func(*testnet.Netns) {}, true},
		{"renamed", func(p *testnet.Netns) { p.IP("link", "set", "net1", "name", "x") }, true},
		{"another MAC", func(p *testnet.Netns) { p.IP("link", "set", "net1", "address", "02:00:00:00:00:99") }, true},
		{"renamed, but the alias says its name on the host", func(p *testnet.Netns) {
			p.IP("link", "set", "net1", "name", "x", "alias", "ens1", "address", "02:00:00:00:00:99")
		}, true},
		{"renamed, another MAC", func(p *testnet.Netns) {
			p.IP("link", "set", "net1", "name", "x", "alias", "", "address", "02:00:00:00:00:99")
		}, false},
		{"another link has its name", func(p *testnet.Netns) {
			p.IP("link", "set", "net1", "name", "x")
			p.IP("link", "add", "net1", "type", "veth", "peer", "name", "far")
		}, true},
		{"another link has its name and its MAC", func(p *testnet.Netns) {
			p.IP("link", "set", "net1", "name", "x")
			p.IP("link", "add", "net1", "address", mac, "type", "veth", "peer", "name", "far")
		}, true},
		{"gone, another link has its name", func(p *testnet.Netns) {
			p.IP("link", "del", "net1")
			p.IP("link", "add", "net1", "index", "4711", "type", "veth", "peer", "name", "far")
		}, false},
		{"gone, another kind of link has its name and its MAC", func(p *testnet.Netns) {
			p.IP("link", "del", "net1")
			p.IP("link", "add", "net1", "address", mac, "type", "ifb")
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			r.Host.IP("link", "set", "ens1", "address", mac)
			l := r.Host.Link("ens1")
			if err := link.Move(r.Host.Netns, l.Index, r.Pod.Netns, "net1", "ens1"); err != nil {
				t.Fatal(err)
			}
			c.given(r.Pod)
			got, err := link.Find(r.Pod.Netns, l.Identity(), "net1", "ens1")
			if err != nil {
				t.Fatal(err)
			}
			if !c.found {
				if got != nil {
					t.Fatalf("took another link for it: %+v", got)
				}
				return
			}
			if got == nil || got.Index != l.Index {
				t.Fatalf("found %+v, want the link with index %d in\n%s", got, l.Index, r.Pod.IP("-d", "link"))
			}
		})
	}
}

func TestLinkSayings(t *testing.T) {
	l := &link.Link{Name: "a", AltNames: []string{"b"}, ParentDev: "virtio1", Flags: unix.IFF_LOWER_UP | unix.IFF_NOARP}
	if got := strings.Join(l.Names(), " "); got != "a b" {
		t.Errorf("Names: %s", got)
	}
	if l.IsUp() || !l.HasCarrier() || !l.HasParent() {
		t.Errorf("up %v, carrier %v, parent %v", l.IsUp(), l.HasCarrier(), l.HasParent())
	}
	if got := l.SettableFlags(); got != (link.Flags{NoARP: true}) {
		t.Errorf("flags %+v", got)
	}
	if id := (&link.Link{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}).Identity(); id.MAC != "02:00:00:00:00:01" || id.PermMAC != "" {
		t.Errorf("identity %+v", id)
	}
}

func TestWhatTheKernelDoesNotMove(t *testing.T) {
	n, other := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "other")
	n.Batch(nil, "link add br0 type bridge", "link add v0 up type veth peer name v1", "addr add 10.0.0.1/24 dev v0")
	before := n.State()
	for name, movable := range map[string]bool{"lo": false, "br0": false, "v0": true} {
		l, err := link.ByName(n.Netns, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := link.Movable(n.Netns, l); (err == nil) != movable || err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
		if movable {
			continue
		}
		err = link.Move(n.Netns, l.Index, other.Netns, "x", "")
		if !errors.Is(err, unix.EINVAL) || l.Immutable && !strings.Contains(err.Error(), "immutable") {
			t.Errorf("the move of %s does not tell the kernel's reason: %v", name, err)
		}
	}
	if d := testnet.Diff(before, n.State()); d != "" {
		t.Errorf("asking changed the namespace:\n%s", d)
	}
}

func TestLinksAreDeletedTogether(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.Batch(nil, "link add i0 type ifb", "link add i1 type ifb", "link add other type ifb")
	named := func(names ...string) (links []*link.Link) {
		for _, name := range names {
			l, err := link.ByName(n.Netns, name)
			if err != nil {
				t.Fatal(err)
			}
			links = append(links, l)
		}
		return links
	}
	// The kernel refuses to delete the loopback, as it does for a NIC, and deletes none of the
	// links.
	if left, err := link.DeleteTogether(n.Netns, named("i0", "i1", "lo"), time.Minute); len(left) != 3 || err != nil {
		t.Errorf("%d of 3 are left (%v)", len(left), err)
	}
	gone := &link.Link{Index: 4711, Kind: "ifb"}
	if left, err := link.DeleteTogether(n.Netns, append(named("i0", "i1"), gone), time.Minute); len(left) != 0 || err != nil {
		t.Errorf("%d are left (%v)", len(left), err)
	}
	if links, err := link.Links(n.Netns); len(links) != 2 || err != nil {
		t.Errorf("%d links, want lo and other (%v)", len(links), err)
	}
}
