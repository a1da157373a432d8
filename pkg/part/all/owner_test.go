package all_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestOwnerOfANICIsNotDisturbed returns a NIC whose owner, like NetworkManager, removes the address
// that it finds, then the routes, and then configures the NIC by its profile. DEL restores the
// address once, and waits for the owner.
func TestOwnerOfANICIsNotDisturbed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	profile := asMade["NetworkManager"]
	b.make(profile)
	before := b.node.State()
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	added, configured := ownNIC(t, b.node, func() {
		b.node.IP("route", "flush", "dev", nicName)
		time.Sleep(300 * time.Millisecond)
		b.make(profile)
	})
	b.node.MustRun(b.call("DEL", config))
	select {
	case <-configured:
	default:
		t.Error("DEL did not wait for the owner")
		<-configured
	}
	if n := added.Load(); n != 2 {
		t.Errorf("the address was added %d times, want 2: by DEL and by the owner", n)
	}
	if d := b.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if note := b.returned(); note != "" {
		t.Errorf("it is noted: %s", note)
	}
}

// ownNIC removes the first IPv4 address that the NIC of a bench gets, and then runs configure. It
// counts the addresses added; configured is closed when configure has returned.
func ownNIC(t *testing.T, ns *testnet.Netns, configure func()) (added *atomic.Int64, configured <-chan struct{}) {
	t.Helper()
	handle, err := netns.GetFromName(ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	routes, err := netlink.NewHandleAt(handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(routes.Close)
	updates, done := make(chan netlink.AddrUpdate, 16), make(chan struct{})
	if err := netlink.AddrSubscribeAt(handle, updates, done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(done) })
	added = &atomic.Int64{}
	finished := make(chan struct{})
	go func() {
		for u := range updates {
			if !u.NewAddr || u.LinkAddress.IP.To4() == nil || added.Add(1) != 1 {
				continue
			}
			if err := routes.AddrDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: u.LinkIndex}}, &netlink.Addr{IPNet: &u.LinkAddress}); err != nil {
				t.Error(err)
			}
			go func() {
				defer close(finished)
				configure()
			}()
		}
	}()
	return added, finished
}
