package link_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// manyAltnames returns as many of the longest altnames as the kernel accepts (rtnl_alt_ifname:
// their list must fit into 64 KiB). With these altnames the description of a link is longer than
// the usual receive buffer of 64 KiB.
func manyAltnames(count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprintf("a%04d%s", i, strings.Repeat("x", 122)))
	}
	return names
}

func addAltnames(n *testnet.Netns, name string, altnames []string) {
	var commands []string
	for _, a := range altnames {
		commands = append(commands, fmt.Sprintf("link property add dev %s altname %s", name, a))
	}
	n.Batch(nil, commands...)
}

func TestLinksAreReadWhateverTheirSize(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "nic", "type", "ifb")
	n.IP("link", "add", "big", "type", "ifb")
	n.IP("link", "add", "last", "type", "ifb")
	altnames := manyAltnames(490)
	addAltnames(n, "big", altnames)
	big, err := link.ByName(n.Netns, "big")
	if err != nil {
		t.Fatal(err)
	}
	byAltname, err := link.ByName(n.Netns, altnames[489])
	if err != nil {
		t.Fatal(err)
	}
	byIndex, err := link.ByIndex(n.Netns, big.Index)
	if err != nil {
		t.Fatal(err)
	}
	links, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
		if l.Name == "big" && !slices.Equal(l.AltNames, altnames) {
			t.Errorf("in the list it has %d altnames", len(l.AltNames))
		}
	}
	if want := []string{"lo", "nic", "big", "last"}; !slices.Equal(names, want) {
		t.Errorf("links %q, want %q", names, want)
	}
	for how, l := range map[string]*link.Link{"name": big, "altname": byAltname, "index": byIndex} {
		if l.Name != "big" || l.Kind != "ifb" || l.Damage != nil || !slices.Equal(l.AltNames, altnames) {
			t.Errorf("by %s: %s (%s), %d altnames, damage %v", how, l.Name, l.Kind, len(l.AltNames), l.Damage)
		}
	}
	if s, err := nicstate.Take(n.Netns, n.View(big)); err != nil || len(s.Settings) == 0 {
		t.Errorf("its snapshot: %v, %v", s, err)
	}
	if err := link.KeepAltNames(n.Netns, big, altnames[5:7]); err != nil {
		t.Error(err)
	}
	if l := n.Link("big"); !slices.Equal(l.AltNames, altnames[5:7]) {
		t.Errorf("%d altnames kept", len(l.AltNames))
	}
}

// The kernel's own description of a link may be malformed, and a pod can cause that for its
// macvlans. All other links must be read, and also the intact part of the damaged description.
func TestADamagedLinkHidesNoOther(t *testing.T) {
	// With each overflow of the 16 bits the reader continues at a different part of an address.
	for _, addresses := range []int{6000, 11500, 17000} {
		t.Run(fmt.Sprint(addresses), func(t *testing.T) {
			t.Parallel()
			testDamagedLink(t, addresses)
		})
	}
}

func testDamagedLink(t *testing.T, addresses int) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "nic", "type", "veth", "peer", "name", "far")
	n.IP("link", "add", "link", "nic", "name", "odd", "address", "02:00:00:00:00:07", "type", "macvlan", "mode", "source")
	n.IP("link", "add", "last", "type", "ifb")
	n.Damage("odd", addresses)
	var unread []string
	n.Unread = func(_ int, name string, _ error) { unread = append(unread, name) }
	for range 2 {
		links, err := link.Links(n.Netns)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range links {
			names = append(names, l.Name)
		}
		slices.Sort(names)
		if want := []string{"far", "last", "lo", "nic", "odd"}; !slices.Equal(names, want) {
			t.Fatalf("links %q, want %q", names, want)
		}
	}
	if len(unread) != 1 || unread[0] != "odd" {
		t.Errorf("told of %v, want the damaged link, once", unread)
	}
	odd, err := link.ByName(n.Netns, "odd")
	if err != nil {
		t.Fatal(err)
	}
	if odd.Damage == nil || odd.Kind != "macvlan" || odd.MAC.String() != "02:00:00:00:00:07" {
		t.Errorf("%+v", odd)
	}
	if err := link.Delete(n.Netns, odd.Index); err != nil {
		t.Error(err)
	}
}

// Links that the kernel cannot list can be read one by one.
func TestLinksOneByOneAreTheSame(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "nic", "type", "veth", "peer", "name", "far")
	n.IP("link", "add", "link", "nic", "name", "mv", "type", "macvlan", "mode", "private")
	n.IP("link", "add", "last", "type", "ifb")
	addAltnames(n, "last", manyAltnames(490))
	want, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	got, err := link.LinksOneByOne(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d links, want %d", len(got), len(want))
	}
	for i := range want {
		if a, b := fmt.Sprintf("%+v", *got[i]), fmt.Sprintf("%+v", *want[i]); a != b {
			t.Errorf("%s\nwant\n%s", a, b)
		}
	}
}

// This package and the library must read every kind of link in the same way.
func TestLinksAreReadAsTheLibraryDoes(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	away := testnet.NewNetns(t, "away")
	n.NIC("cable", away)
	for _, args := range [][]string{
		{"nic", "alias", "rail 1", "address", "02:00:00:00:00:01", "txqueuelen", "77", "mtu", "4242", "group", "7", "type", "veth", "peer", "name", "far"},
		{"br0", "type", "bridge"},
		{"ifb0", "type", "ifb"},
	} {
		n.IP(append([]string{"link", "add"}, args...)...)
	}
	modes := map[netlink.MacvlanMode]string{
		netlink.MACVLAN_MODE_BRIDGE: "bridge", netlink.MACVLAN_MODE_PRIVATE: "private",
		netlink.MACVLAN_MODE_VEPA: "vepa", netlink.MACVLAN_MODE_PASSTHRU: "passthru",
	}
	for _, mode := range modes {
		n.IP("link", "add", "on-"+mode, "type", "veth", "peer", "name", "p-"+mode)
		n.IP("link", "add", "link", "on-"+mode, "name", "mv-"+mode, "type", "macvlan", "mode", mode)
	}
	n.IP("link", "set", "far", "master", "br0")
	n.IP("link", "set", "nic", "up")
	n.IP("link", "property", "add", "dev", "nic", "altname", "other", "altname", "another-name-of-the-nic")
	got, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	var want []netlink.Link
	n.Inside(func() { want, err = netlink.LinkList() })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d links, want %d", len(got), len(want))
	}
	for i, l := range got {
		w := want[i].Attrs()
		same := &link.Link{
			Index: w.Index, Name: w.Name, AltNames: w.AltNames, Alias: w.Alias, Kind: want[i].Type(), Encap: w.EncapType,
			MTU: w.MTU, TxQueueLen: w.TxQLen, Group: w.Group, MAC: w.HardwareAddr, PermMAC: w.PermHWAddr, Flags: w.RawFlags,
			ParentDev: w.ParentDev, ParentBus: w.ParentDevBus, Lower: w.ParentIndex, LowerInOtherNetns: w.NetNsID >= 0,
			Master: w.MasterIndex, OperUp: w.OperState == netlink.OperUp,
			Carrier: l.Carrier, Immutable: l.Immutable, Mutable: l.Mutable, // which the library does not have
		}
		if m, ok := want[i].(*netlink.Macvlan); ok {
			same.Mode = modes[m.Mode]
		}
		if a, b := fmt.Sprintf("%+v", *l), fmt.Sprintf("%+v", *same); a != b {
			t.Errorf("%s\nthe library:\n%s", a, b)
		}
	}
}

// A process of the pod may send messages to any socket of its namespace.
func TestMessagesOfOthersAreNoAnswer(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	var others []byte
	header := func(kind uint16, seq uint32) []byte {
		h := make([]byte, unix.SizeofNlMsghdr+4)
		binary.NativeEndian.PutUint32(h, uint32(len(h)))
		binary.NativeEndian.PutUint16(h[4:], kind)
		binary.NativeEndian.PutUint32(h[8:], seq)
		denied := -int32(unix.EPERM)
		binary.NativeEndian.PutUint32(h[16:], uint32(denied))
		return h
	}
	for seq := range uint32(50) {
		others = append(others, header(unix.NLMSG_ERROR, seq)...)
	}
	n.Inside(func() {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for range 3 {
			err := unix.Sendto(fd, others, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: portOf(n.Netns)})
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("the socket takes messages of others: %v", err)
			}
		}
	})
	if l, err := link.ByName(n.Netns, "lo"); err != nil || l.Name != "lo" {
		t.Errorf("%+v, %v", l, err)
	}
}

func BenchmarkByName(b *testing.B) {
	n := testnet.NewNetns(b, "n")
	n.IP("link", "add", "nic", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "far")
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			if _, err := link.ByName(n.Netns, "nic"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		var h *netlink.Handle
		n.Inside(func() {
			var err error
			if h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
				b.Fatal(err)
			}
		})
		defer h.Close()
		for b.Loop() {
			if _, err := h.LinkByName("nic"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestSomeLinksAreTheFirstAndTheWantedWithoutAltnames(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	for i := range 8 {
		n.IP("link", "add", fmt.Sprint("if", i), "type", "ifb")
	}
	addAltnames(n, "if0", manyAltnames(490))
	all, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	wanted := all[len(all)-1].Index
	some, err := link.SomeLinks(n.Netns, 3, func(index int) bool { return index == wanted })
	if err != nil || len(some) != 4 || some[3].Index != wanted || some[3].Name != "if7" {
		t.Fatalf("%d links, %v", len(some), err)
	}
	for i, l := range some {
		if len(l.AltNames) > 0 || l.Damage != nil || i < 3 && l.Index != all[i].Index {
			t.Errorf("%s: %d altnames, %v", l.Name, len(l.AltNames), l.Damage)
		}
	}
}

// portOf returns the address of the namespace's netlink socket.
func portOf(n *netns.Netns) uint32 {
	s, err := n.Socket(unix.NETLINK_ROUTE)
	if err != nil {
		panic(err)
	}
	port, err := s.Socket.GetPid()
	if err != nil {
		panic(err)
	}
	return port
}
