//go:build rig

package tests

import (
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

const driver = "/sys/bus/pci/drivers/mlx5_core/"

// leavings are ways in which a NIC disappears for good or for a while, and how
// it comes back.
var leavings = map[string]struct{ leave, back func(*testing.T) }{
	"unplugged": {
		func(t *testing.T) { write(t, "/sys/bus/pci/devices/"+nicPCI(0)+"/remove", "1") },
		func(t *testing.T) { write(t, "/sys/bus/pci/rescan", "1") },
	},
	"driver unbound": {
		func(t *testing.T) { write(t, driver+"unbind", nicPCI(0)) },
		func(t *testing.T) { write(t, driver+"bind", nicPCI(0)) },
	},
}

func TestAttachmentOfANICThatIsGoneEnds(t *testing.T) {
	for name, c := range leavings {
		for _, podDies := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", and its pod died"}[podDies], func(t *testing.T) {
				n := newNode(t)
				n.up(1)
				p, config := n.pod("pod1"), n.config(0, nil)
				n.MustRun(p.call("ADD", "net1", config))
				c.leave(t)
				if podDies {
					p.Kill()
				}
				began := time.Now()
				n.MustRun(p.call("DEL", "net1", config))
				t.Logf("DEL took %v", time.Since(began).Round(time.Millisecond))
				if left := n.records(); len(left) != 0 {
					t.Errorf("%d records are left", len(left))
				}
				if l, err := link.ByName(n.Netns.Netns, nicName(0)); !errors.Is(err, link.ErrNotFound) {
					t.Errorf("%s is on the host: %+v, %v", nicName(0), l, err)
				}
				// It comes back as a new NIC, and can be lent again.
				c.back(t)
				n.up(1)
				before := n.State()
				again := n.pod("pod2")
				n.MustRun(again.call("ADD", "net1", config))
				n.MustRun(again.call("DEL", "net1", config))
				n.untouched(before)
			})
		}
	}
}

// The NIC is back on the host before its attachment ends: as the kernel makes
// it, without its administrator's settings.
func TestNICThatWasAwayForAWhileIsBroughtIntoOrder(t *testing.T) {
	for name, c := range leavings {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.furnish(1)
			before := n.State()
			p, config := n.pod("pod1"), n.config(0, nil)
			n.MustRun(p.call("ADD", "net1", config))
			c.leave(t)
			c.back(t)
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
		})
	}
}

func TestVirtualFunctionThatIsRemovedWhileLentIsForgotten(t *testing.T) {
	n := newNode(t)
	const physical = "/sys/bus/pci/devices/0000:01:00.0/"
	before := n.State()
	write(t, physical+"sriov_numvfs", "2")
	p := n.pod("pod1")
	config := n.config(0, map[string]any{"device": nil, "pciBusID": "0000:01:00.1"})
	if _, err := os.Stat("/sys/bus/pci/devices/0000:01:00.1"); err != nil {
		t.Fatal(err)
	}
	n.MustRun(p.call("ADD", "net1", config))
	write(t, physical+"sriov_numvfs", "0")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

// TestVirtualFunctionThatIsMadeAnewWhileLentIsForgotten has an administrator
// make the functions again: the place then has another NIC, with another MAC
// and GUID, on the host or in the next pod.
func TestVirtualFunctionThatIsMadeAnewWhileLentIsForgotten(t *testing.T) {
	const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
	for name, lentAgain := range map[string]bool{"": false, "and lent again": true} {
		t.Run(name, func(t *testing.T) {
			n := newRDMANode(t, rdma.Exclusive, "")
			write(t, physical+"sriov_numvfs", "2")
			t.Cleanup(func() {
				n.IP("link", "set", pf, "vf", "0", "mac", "00:00:00:00:00:00")
				write(t, physical+"sriov_numvfs", "0")
			})
			config := n.config(0, map[string]any{"device": nil, "pciBusID": "0000:01:00.1", "rdma": "required"})
			first, next := n.pod("pod1"), n.pod("pod2")
			n.MustRun(first.call("ADD", "net1", config))
			if _, err := os.Stat("/sys/bus/pci/devices/0000:01:00.1/net"); err != nil {
				t.Errorf("sysfs has no netdev of a NIC in a pod, as of one without a driver: %v", err)
			}
			lent := n.records()[0].Loan.Identity
			n.IP("link", "set", pf, "vf", "0", "mac", "b8:ce:f6:00:01:77")
			write(t, physical+"sriov_numvfs", "0")
			write(t, physical+"sriov_numvfs", "2")
			before, devices := n.State(), n.allRDMA()
			if lentAgain {
				n.MustRun(next.call("ADD", "net1", config))
			}
			began := time.Now()
			n.MustRun(first.call("DEL", "net1", config))
			t.Logf("DEL took %v", time.Since(began).Round(time.Millisecond))
			if !lentAgain {
				n.MustRun(next.call("ADD", "net1", config))
			}
			if r := n.records(); len(r) != 1 || r[0].Loan.Identity.PermMAC == lent.PermMAC {
				t.Errorf("the NIC lent before was %+v; now there are %d records: %+v", lent, len(r), r[0].Loan)
			}
			if l, err := link.ByName(next.Netns.Netns, "net1"); err != nil || l.ParentDev != "0000:01:00.1" {
				t.Errorf("the next pod's net1: %+v, %v", l, err)
			}
			n.MustRun(next.call("DEL", "net1", config))
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
			}
		})
	}
}
