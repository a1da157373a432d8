package plans_test

import (
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestOwnerOfANICIsNotDisturbed returns a NIC that has an owner, such as NetworkManager. The owner
// removes the address that it finds on the NIC, then the routes, and then configures the NIC by its
// profile. DEL restores the address once, and leaves the rest to the owner. The owner may configure
// the NIC even after DEL has ended.
func TestOwnerOfANICIsNotDisturbed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	profile := asMade["NetworkManager"]
	b.make(profile)
	before := b.node.State()
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	owner := ownNIC(t, b.node)
	_, err := b.node.Run(b.call("DEL", config))
	owner.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	if d := b.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if n := owner.added.Load(); n != 2 {
		t.Errorf("the address was added %d times, want 2: by DEL and by the owner", n)
	}
	if note := b.returned(); note != "" {
		t.Errorf("it is noted: %s", note)
	}
}

// owner is the owner of the NIC of a bench.
type owner struct {
	added atomic.Int64 // IPv4 addresses
	ended chan error   // of the configuration
}

// ownNIC starts an owner. It removes the first IPv4 address that it sees, then the routes, and
// configures the NIC as NetworkManager does.
func ownNIC(t *testing.T, ns *testnet.Netns) *owner {
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
	o := &owner{ended: make(chan error, 1)}
	ip := func(batch string) error {
		cmd := exec.Command("ip", "-n", ns.Name, "-batch", "-")
		cmd.Stdin = strings.NewReader(batch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	configure := func(u netlink.AddrUpdate) error {
		nic := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: u.LinkIndex}}
		if err := routes.AddrDel(nic, &netlink.Addr{IPNet: &u.LinkAddress}); err != nil {
			return err
		}
		if err := ip("route flush dev " + nicName + "\n"); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		return ip(strings.ReplaceAll(strings.Join(asMade["NetworkManager"], "\n")+"\n", "%s", nicName))
	}
	go func() {
		for u := range updates {
			if u.NewAddr && u.LinkAddress.IP.To4() != nil && o.added.Add(1) == 1 {
				go func() { o.ended <- configure(u) }()
			}
		}
	}()
	return o
}

// wait waits until the owner has configured the NIC.
func (o *owner) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-o.ended:
		if err != nil {
			t.Errorf("the owner: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the owner has seen no address")
	}
}
