package nicstate_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/announce"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/settings"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// errorsOf are the errors of changes, which are reported as a list.
func errorsOf(changed []link.Changed) error {
	var errs []error
	for _, c := range changed {
		errs = append(errs, c.Err)
	}
	return errors.Join(errs...)
}

// callsOf are the calls of package link that read or change the link of v by its index or its name.
// Delete is not among them, because a missing link is not an error for it.
func callsOf(t *testing.T, r *testnet.Rail, v *link.View) map[string]func() error {
	l, n, other := v.Link, r.Host, r.Wire.Netns
	before, err := nicstate.Take(n.Netns, v)
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
		"View":            func() error { _, err := link.ReadView(n.Netns, l.Index); return err },
		"ByName":          func() error { _, err := link.ByName(n.Netns, l.Name); return err },
		"ByIndex":         func() error { _, err := link.ByIndex(n.Netns, l.Index); return err },
		"Addresses":       func() error { _, err := link.Addresses(n.Netns, l.Index); return err },
		"SomeAddresses":   func() error { _, err := link.SomeAddresses(n.Netns, l.Index, 10); return err },
		"Tentative":       func() error { _, err := link.Tentative(n.Netns, l.Index); return err },
		"AwaitDAD":        func() error { return link.AwaitDAD(t.Context(), n.Netns, l.Index) },
		"Programs":        func() error { _, err := bpf.Programs(n.Netns, &link.Link{Index: l.Index, Kind: l.Kind}); return err },
		"Programs by tcx": func() error { _, err := bpf.Programs(n.Netns, l); return err },
		"Functions":       func() error { _, err := sriov.Functions(n.Netns, l.Index); return err },
		"Device":          func() error { _, err := device.Read(n.Netns, l); return err },
		"Snapshot":        func() error { _, err := nicstate.Take(n.Netns, v); return err },
		"Movable":         func() error { return link.Movable(n.Netns, &link.Link{Index: l.Index}) },
		"DCB":             func() error { _, err := device.ReadDCB(n.Netns, l.Name); return err },
		"Driver":          func() error { _, err := device.ReadDriver(n.Netns, l.Name); return err },
		"Hardware":        func() error { _, err := device.ReadHardware(n.Netns, l.Name); return err },
		"Sysctls":         func() error { _, err := sysctl.Read(n.Netns, l.Name); return err },
		"Accepts":         func() error { _, err := link.Accepts(n.Netns, l.Index, mac); return err },
		"MacvlanIsUp":     func() error { _, err := probe.MacvlanIsUp(n.Netns, l.Index, mac); return err },
		"Move":            func() error { return link.Move(n.Netns, l.Index, other, "net1", "alias") },
		"MoveAs":          func() error { return link.MoveAs(n.Netns, l, other, "net1", "alias") },
		"Rename":          func() error { return link.Rename(n.Netns, l.Index, "new") },
		"SetUp":           func() error { return link.SetUp(n.Netns, l.Index) },
		"SetDown":         func() error { return link.SetDown(n.Netns, l.Index) },
		"SetMTU":          func() error { return link.SetMTU(n.Netns, l.Index, 1400) },
		"AddAddress":      func() error { return link.AddAddress(n.Netns, l.Index, ip) },
		"AddRoute":        func() error { return link.AddRoute(n.Netns, l.Index, link.Route{Dst: dst}) },
		"AddRoute by": func() error {
			return link.AddRoute(n.Netns, l.Index, link.Route{Dst: dst, Gateway: net.IP{10, 0, 0, 1}})
		},
		"AddRoute of IPv6": func() error {
			_, dst, _ := net.ParseCIDR("fd07::/64")
			return link.AddRoute(n.Netns, l.Index, link.Route{Dst: dst})
		},
		"SetAddressMetric": func() error { return link.SetAddressMetric(n.Netns, l.Index, ip, 7) },
		"Silence":          func() error { return link.Silence(n.Netns, l.Index) },
		"FlushAddresses":   func() error { return link.FlushAddresses(n.Netns, l.Index) },
		"KeepAltNames":     func() error { return link.KeepAltNames(n.Netns, l, nil) },
		"Detach XDP":       func() error { return bpf.Detach(n.Netns, l.Index, []bpf.Program{{Hook: "xdp generic", ID: 1}}) },
		"CreateMacvlan": func() error {
			return link.CreateMacvlan(n.Netns, other, link.Macvlan{Master: l.Index, Name: "mv", Mode: "bridge"})
		},
		"SetSysctls": func() error { return sysctl.Set(n.Netns, l.Name, map[string]string{"ipv4/conf/arp_ignore": "1"}) },
		"Announce": func() error {
			return announce.Addresses(n.Netns, l, mac, []netip.Addr{netip.MustParseAddr("10.0.0.7")})
		},
		"Restore": func() error {
			lost, err := nicstate.Restore(n.Netns, l, changed(*before))
			return errors.Join(append(lost, err)...)
		},
		"ReplayAddresses":  func() error { return errors.Join(nicstate.ReplayAddresses(n.Netns, l.Index, before)...) },
		"ReplayRoutes":     func() error { return errors.Join(nicstate.ReplayRoutes(n.Netns, l.Index, before)...) },
		"RestoreDevice":    func() error { return errorsOf(device.Restore(n.Netns, l.Index, l.Name, before.Device)) },
		"RestoreFunctions": func() error { return errorsOf(sriov.Restore(n.Netns, l.Index, before.Functions)) },
		"MoreReceivers":    func() error { return errorsOf(settings.MoreReceivers(n.Netns, l.Index, before.Receivers)) },
		"AwaitDAD, no more": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return link.AwaitDAD(ctx, n.Netns, l.Index)
		},
	}
}

// changed returns a copy of the snapshot with other values, which Restore would set.
func changed(s nicstate.Snapshot) *nicstate.Snapshot {
	s.Alias, s.MTU, s.TxQueueLen, s.Group, s.MAC = "other", 1300, 17, 3, "02:00:00:00:00:17"
	s.Flags.AllMulticast, s.Up, s.Name = true, !s.Up, "ens7"
	return &s
}

func TestLinkThatIsGoneIsNotFound(t *testing.T) {
	for name, leave := range map[string]func(r *testnet.Rail){
		"moved":   func(r *testnet.Rail) { r.Host.IP("link", "set", "ens1", "netns", r.Pod.Path) },
		"deleted": func(r *testnet.Rail) { r.Host.IP("link", "del", "ens1") },
	} {
		t.Run(name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			r.Host.IP("link", "property", "add", "dev", "ens1", "altname", "enp1")
			r.Host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1")
			r.Host.IP("route", "add", "10.1.0.0/16", "via", "10.0.0.1", "dev", "ens1")
			r.Host.IP("neigh", "add", "10.0.0.9", "lladdr", "02:00:00:00:00:09", "dev", "ens1")
			calls := callsOf(t, r, r.Host.View(r.Host.Link("ens1")))
			leave(r)
			for call, do := range calls {
				if err := do(); !errors.Is(err, link.ErrNotFound) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

func TestRestoreOfALinkThatIsGoneLosesNothing(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	r.Host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1")
	r.Host.IP("route", "add", "10.1.0.0/16", "via", "10.0.0.1", "dev", "ens1")
	v := r.Host.View(r.Host.Link("ens1"))
	before, err := nicstate.Take(r.Host.Netns, v)
	if err != nil {
		t.Fatal(err)
	}
	r.Host.IP("link", "set", "ens1", "netns", r.Pod.Path)
	// The link itself is unchanged, so Restore has only addresses and routes to set.
	if lost, err := nicstate.Restore(r.Host.Netns, v.Link, before); !errors.Is(err, link.ErrNotFound) || len(lost) > 0 {
		t.Errorf("%v, lost %v", err, lost)
	}
}
