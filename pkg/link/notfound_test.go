package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// errorsOf are the errors of changes that are reported as a list.
func errorsOf(changed []link.Changed) error {
	var errs []error
	for _, c := range changed {
		errs = append(errs, c.Err)
	}
	return errors.Join(errs...)
}

// callsOf are the calls of package link that read or change the link of v by its index or
// its name, except Delete, for which a missing link is no error.
func callsOf(t *testing.T, r *rail, v *link.View) map[string]func() error {
	l, n, other := v.Link, r.host, r.wire.Netns
	before, err := n.Snapshot(v)
	if err != nil {
		t.Fatal(err)
	}
	// The link has an address and a route, and virtual functions and a program that are never read.
	before.Functions = [][]byte{{}}
	ip, dst := &net.IPNet{IP: net.IP{10, 0, 0, 7}, Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.IP{10, 2, 0, 0}, Mask: net.CIDRMask(16, 32)}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	probe := &link.Probe{}
	t.Cleanup(probe.Close)
	return map[string]func() error{
		"View":            func() error { _, err := n.View(l.Index); return err },
		"ByName":          func() error { _, err := n.ByName(l.Name); return err },
		"ByIndex":         func() error { _, err := n.ByIndex(l.Index); return err },
		"Addresses":       func() error { _, err := n.Addresses(l.Index); return err },
		"SomeAddresses":   func() error { _, err := n.SomeAddresses(l.Index, 10); return err },
		"Tentative":       func() error { _, err := n.Tentative(l.Index); return err },
		"AwaitDAD":        func() error { return n.AwaitDAD(t.Context(), l.Index) },
		"Programs":        func() error { _, err := n.Programs(&link.Link{Index: l.Index, Kind: l.Kind}); return err },
		"Programs by tcx": func() error { _, err := n.Programs(l); return err },
		"Functions":       func() error { _, err := n.Functions(l.Index); return err },
		"Device":          func() error { _, err := n.Device(l); return err },
		"Snapshot":        func() error { _, err := n.Snapshot(v); return err },
		"Movable":         func() error { return n.Movable(&link.Link{Index: l.Index}) },
		"DCB":             func() error { _, err := n.DCB(l.Name); return err },
		"Driver":          func() error { _, err := n.Driver(l.Name); return err },
		"Hardware":        func() error { _, err := n.Hardware(l.Name); return err },
		"Sysctls":         func() error { _, err := n.Sysctls(l.Name); return err },
		"Accepts":         func() error { _, err := n.Accepts(l.Index, mac); return err },
		"MacvlanIsUp":     func() error { _, err := probe.MacvlanIsUp(n.Netns, l.Index, mac); return err },
		"Move":            func() error { return n.Move(l.Index, other, "net1", "alias") },
		"MoveAs":          func() error { return n.MoveAs(l, other, "net1", "alias") },
		"Rename":          func() error { return n.Rename(l.Index, "new") },
		"SetUp":           func() error { return n.SetUp(l.Index) },
		"SetDown":         func() error { return n.SetDown(l.Index) },
		"SetMTU":          func() error { return n.SetMTU(l.Index, 1400) },
		"AddAddress":      func() error { return n.AddAddress(l.Index, ip) },
		"AddRoute":        func() error { return n.AddRoute(l.Index, link.Route{Dst: dst}) },
		"AddRoute by":     func() error { return n.AddRoute(l.Index, link.Route{Dst: dst, Gateway: net.IP{10, 0, 0, 1}}) },
		"AddRoute of IPv6": func() error {
			_, dst, _ := net.ParseCIDR("fd07::/64")
			return n.AddRoute(l.Index, link.Route{Dst: dst})
		},
		"SetAddressMetric": func() error { return n.SetAddressMetric(l.Index, ip, 7) },
		"Silence":          func() error { return n.Silence(l.Index) },
		"FlushAddresses":   func() error { return n.FlushAddresses(l.Index) },
		"KeepAltNames":     func() error { return n.KeepAltNames(l, nil) },
		"Detach XDP":       func() error { return n.Detach(l.Index, []link.Program{{Hook: "xdp generic", ID: 1}}) },
		"CreateMacvlan":    func() error { return n.CreateMacvlan(other, link.Macvlan{Master: l.Index, Name: "mv", Mode: "bridge"}) },
		"SetSysctls":       func() error { return n.SetSysctls(l.Name, map[string]string{"ipv4/conf/arp_ignore": "1"}) },
		"Announce":         func() error { return n.Announce(l, mac, []netip.Addr{netip.MustParseAddr("10.0.0.7")}) },
		"Restore":          func() error { lost, err := n.Restore(l, changed(*before)); return errors.Join(append(lost, err)...) },
		"ReplayAddresses":  func() error { return errors.Join(n.ReplayAddresses(l.Index, before)...) },
		"ReplayRoutes":     func() error { return errors.Join(n.ReplayRoutes(l.Index, before)...) },
		"RestoreDevice":    func() error { return errorsOf(n.RestoreDevice(l.Index, l.Name, before.Device)) },
		"RestoreFunctions": func() error { return errorsOf(n.RestoreFunctions(l.Index, before.Functions)) },
		"MoreReceivers":    func() error { return errorsOf(n.MoreReceivers(l.Index, before)) },
		"AwaitDAD, no more": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return n.AwaitDAD(ctx, l.Index)
		},
	}
}

// changed returns the snapshot with other values, which Restore would set.
func changed(s link.Snapshot) *link.Snapshot {
	s.Alias, s.MTU, s.TxQueueLen, s.Group, s.MAC = "other", 1300, 17, 3, "02:00:00:00:00:17"
	s.Flags.AllMulticast, s.Up, s.Name = true, !s.Up, "ens7"
	return &s
}

func TestLinkThatIsGoneIsNotFound(t *testing.T) {
	for name, leave := range map[string]func(r *rail){
		"moved":   func(r *rail) { r.host.IP("link", "set", "ens1", "netns", r.pod.Path) },
		"deleted": func(r *rail) { r.host.IP("link", "del", "ens1") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRail(t, "ens1")
			r.host.IP("link", "property", "add", "dev", "ens1", "altname", "enp1")
			r.host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1")
			r.host.IP("route", "add", "10.1.0.0/16", "via", "10.0.0.1", "dev", "ens1")
			r.host.IP("neigh", "add", "10.0.0.9", "lladdr", "02:00:00:00:00:09", "dev", "ens1")
			calls := callsOf(t, r, view(t, r.host, byName(t, r.host, "ens1")))
			leave(r)
			for call, do := range calls {
				if err := do(); !errors.Is(err, link.ErrNotFound) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

// A driver that resets its NIC answers ENODEV for a link that is there, and the kernel says
// so of another link that a request names.
func TestLinkThatIsThereIsFound(t *testing.T) {
	r := newRail(t, "ens1")
	l := byName(t, r.host, "ens1")
	for name, err := range map[string]error{
		"by index": link.IfGone(r.host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), l.Index),
		"by name":  link.IfNameGone(r.host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), "ens1"),
	} {
		if errors.Is(err, link.ErrNotFound) || !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := fmt.Errorf("driver: %w", unix.EBUSY)
	if err := link.IfGone(r.host.Netns, other, 4711); !errors.Is(err, unix.EBUSY) || errors.Is(err, link.ErrNotFound) {
		t.Errorf("another error: %v", err)
	}
	if link.IfGone(r.host.Netns, nil, 4711) != nil || link.IfNameGone(r.host.Netns, nil, "ens9") != nil {
		t.Error("no error is an error")
	}
	if found, err := r.host.Sysctls("ens1"); err != nil || len(found) == 0 {
		t.Errorf("sysctls: %v, %v", found, err)
	}
	r.host.IP("addr", "flush", "dev", "ens1")
	if found, err := r.host.Addresses(l.Index); err != nil || len(found) > 0 {
		t.Errorf("without addresses: %v, %v", found, err)
	}
}

func TestRestoreOfALinkThatIsGoneLosesNothing(t *testing.T) {
	r := newRail(t, "ens1")
	r.host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1")
	r.host.IP("route", "add", "10.1.0.0/16", "via", "10.0.0.1", "dev", "ens1")
	v := view(t, r.host, byName(t, r.host, "ens1"))
	before, err := r.host.Snapshot(v)
	if err != nil {
		t.Fatal(err)
	}
	r.host.IP("link", "set", "ens1", "netns", r.pod.Path)
	// The link itself is as it was, so Restore has only addresses and routes to set.
	if lost, err := r.host.Restore(v.Link, before); !errors.Is(err, link.ErrNotFound) || len(lost) > 0 {
		t.Errorf("%v, lost %v", err, lost)
	}
}
