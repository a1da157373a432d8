package rdmadev

import (
	"context"
	"errors"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// devices has the methods that all parts with RDMA devices share.
type devices struct{ attachment.Base }

// Name implements [attachment.Part].
func (devices) Name() string { return "rdma" }

// Recorded implements [attachment.Part].
func (devices) Recorded(r *ledger.Record) bool { return r.RDMA != nil }

// Any is the part that releases the RDMA devices of a record, of any plugin.
type Any struct{ devices }

// Moving is the part for the RDMA devices of a NIC that is lent. In exclusive mode the devices move
// before the netdev, because the kernel may refuse their move. The devices also return before the
// netdev, because on InfiniBand their move destroys the netdev, and the kernel makes another netdev
// in init_net.
type Moving struct {
	devices
	Conf  netconf.RDMA
	Allow []string // guardrails that the network overrides
	TOS   *int     // type of service of RDMA-CM in the pod; if nil, the host's value stays
	// Isolated is set if the devices must move, so that the RDMA mode must be exclusive.
	Isolated bool
}

// Claim records the RDMA devices of tx.Parent, or the RDMA devices of a function that has no
// netdev.
func (p Moving) Claim(ctx context.Context, tx *attachment.Tx) (err error) {
	if tx.Parent == nil {
		return p.claimAlone(ctx, tx)
	}
	r, err := find(tx.Node, tx.Parent, p.Conf, p.Allow)
	if err != nil {
		return err
	}
	if err := p.checkIsolation(tx, r); err != nil {
		return err
	}
	if tx.Record.Rebinds() { // for any value of "rdma"
		if err := p.guardRebind(ctx, tx); err != nil {
			return err
		}
	}
	if r != nil && r.Mode == string(rdma.Exclusive) {
		if r.Devices[0].Netdev != "" && tx.Parent.IsStacked() {
			return p.stays(tx, r.Devices[0])
		}
		err := p.guard(ctx, tx, r.Devices)
		if errors.Is(err, nic.ErrSharedRDMA) && p.Conf.RDMA != netconf.RDMARequired && !p.Isolated {
			warnStays(tx.Node, tx.Parent, err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	if r != nil {
		r.RoCETOS = p.TOS
	}
	tx.Record.RDMA = r
	return needsMove(p.TOS, r)
}

// checkIsolation returns an error if the devices of r must move but cannot move. r is nil if there
// are no devices.
func (p Moving) checkIsolation(tx *attachment.Tx, r *ledger.RDMA) error {
	switch {
	case !p.Isolated || r != nil && r.Mode == string(rdma.Exclusive):
		return nil
	case r == nil:
		return failure.New(failure.NotAvailable, `"rdmaIsolation": %s has no RDMA device in this netns`, tx.Record.NICName()).
			Cure(`load its RDMA driver, or remove "rdmaIsolation"`)
	}
	return failure.New(failure.NotAvailable, `"rdmaIsolation": RDMA is in shared mode, in which devices cannot move into a pod`).
		Cure(`%s; or remove "rdmaIsolation"`, rdma.AtBoot(rdma.Exclusive))
}

// guardRebind returns an error if the host needs the RDMA device of the lent function. Binding the
// driver again would destroy that device.
func (p Moving) guardRebind(ctx context.Context, tx *attachment.Tx) error {
	core, err := rdma.Open(tx.Node.Host().Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	devices, err := core.ByParent(tx.Record.Loan.PCI)
	if err != nil {
		return err
	}
	var all []ledger.RDMADevice
	for _, d := range devices {
		all = append(all, ledger.RDMADevice{Name: d.Name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev})
	}
	return p.guard(ctx, tx, all)
}

// guard returns an error if the host needs one of the devices, or something that the kernel
// destroys when a device moves.
func (p Moving) guard(ctx context.Context, tx *attachment.Tx, devices []ledger.RDMADevice) error {
	core, err := rdma.Open(tx.Node.Host().Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	for _, r := range devices {
		d, err := findDevice(core, r)
		if err == nil && d != nil {
			err = guardInUse(ctx, tx.Node, core, *d, tx.Parent.Name, makes(tx.Parent), p.Allow)
		}
		if err == nil && d != nil && tx.Parent.IsIPoIB() {
			err = guardInfiniBand(tx, core, *d, p.Allow)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Apply moves the RDMA devices into the pod. The kernel then replaces an InfiniBand interface by a
// new interface. The part of the netdev releases the new interface even if the Apply of that part
// is never called.
func (p Moving) Apply(ctx context.Context, tx *attachment.Tx) error {
	if tx.Record.MadeAnew() {
		tx.Begin(netdevPart)
	}
	return p.move(ctx, tx, p.TOS)
}

// stays returns the error that the interface to lend, a VLAN, gets no RDMA, because the RDMA device
// belongs to the link below the VLAN, which stays on the host. If RDMA is not required, stays logs
// the error and returns nil.
func (p Moving) stays(tx *attachment.Tx, d ledger.RDMADevice) error {
	err := failure.New(failure.NotAvailable, "RDMA is in exclusive mode: the RDMA device %s stays on the host with %s, on which %s lies",
		d.Name, d.Netdev, tx.Parent.Name).
		Cure(`%s; or lend %s itself; or set "rdma": "off"`, rdma.AtBoot(rdma.Shared), d.Netdev)
	if p.Conf.RDMA == netconf.RDMARequired {
		return err
	}
	tx.Node.Log.Warn("pod gets no RDMA", "err", err)
	return nil
}

// Check implements [attachment.Part].
func (p Moving) Check(_ context.Context, c *attachment.Checking) error { return check(c, p.Conf) }

// Available returns the reason why the RDMA part of an ADD cannot work now.
func (p Moving) Available(n *attachment.Node) error { return available(n, p.Conf, false) }

// Shared is the part for the RDMA device of a NIC that stays on the host. In
// exclusive mode no pod can use that device.
type Shared struct {
	devices
	Conf netconf.RDMA
	// InPod is set if the NIC belongs to the pod. Then the RDMA device of the NIC belongs to the
	// pod too.
	InPod bool
}

// Claim records the RDMA devices of tx.Parent.
func (p Shared) Claim(_ context.Context, tx *attachment.Tx) error {
	if tx.Parent == nil {
		return nil
	}
	r, err := find(tx.Node, tx.Parent, p.Conf, []string{netconf.AllowSharedRDMA})
	if err != nil || r == nil {
		return err
	}
	if r.Mode != string(rdma.Exclusive) {
		tx.Record.RDMA = r
		return nil
	}
	exclusive := failure.New(failure.NotAvailable, "RDMA is in exclusive mode: a pod cannot share the RDMA device of %s", tx.Parent.Name).
		Cure(`%s; or lend whole NICs with host-device; or set "rdma": "off"`, rdma.AtBoot(rdma.Shared))
	if p.Conf.RDMA == netconf.RDMARequired {
		return exclusive
	}
	tx.Node.Log.Warn("pod gets no RDMA", "err", exclusive)
	return nil
}

// Apply makes sure that the GID tables of the ports have room for the addresses, because the kernel
// silently drops GIDs if a table is full. If a table has no room, Apply returns an error. With
// "auto" on a VLAN or bond it returns no error, and the pod gets no RDMA.
func (p Shared) Apply(_ context.Context, tx *attachment.Tx) error {
	if tx.Record.RDMA == nil || tx.Parent.IsIPoIB() { // only RoCE has GIDs of addresses
		return nil
	}
	full, err := fullTable(tx)
	switch {
	case err != nil:
		return err
	case full != nil && p.Conf.RDMA == netconf.RDMAAuto && tx.Parent.IsStacked():
		tx.Node.Log.Warn("pod gets no RDMA", "err", full)
		tx.Record.RDMA = nil
		return nil
	}
	return full
}

// fullTable returns the error full if the table of a port has no room for the addresses, and err if
// a table cannot be read.
func fullTable(tx *attachment.Tx) (full, err error) {
	core, err := rdma.Open(tx.Node.Netns)
	if err != nil {
		return nil, err
	}
	defer core.Close()
	for _, d := range tx.Record.RDMA.Devices {
		device, err := findDevice(core, d)
		if err != nil || device == nil || d.Port == 0 || device.Protocol != "roce" {
			continue
		}
		table, err := core.GIDs(*device, d.Port)
		if err != nil {
			return nil, err
		}
		if need := ibaddr.EntriesOf(len(tx.Layer3.Addresses())); table.Free() < need {
			return failure.New(failure.TryAgain, "the GID table of %s port %d has %d of %d entries free, but %d are needed",
				d.Name, d.Port, table.Free(), table.Size, need).
				Cure(`end other pods on this NIC, or spread them over more NICs; "rdma": "off" saves no entries`), nil
		}
	}
	return nil, nil
}

// Check implements [attachment.Part].
func (p Shared) Check(_ context.Context, c *attachment.Checking) error { return check(c, p.Conf) }

// Available returns the reason why the RDMA part of an ADD cannot work now.
func (p Shared) Available(n *attachment.Node) error {
	if p.InPod {
		return nil
	}
	return available(n, p.Conf, true)
}

// find returns the record of the RDMA devices of l, a NIC of the host. The record has whether the
// devices move. find returns nil if there is nothing to do: either "rdma" is "off", or "rdma" is
// "auto" and the NIC has no RDMA device.
func find(n *attachment.Node, l *link.Link, conf netconf.RDMA, allow []string) (*ledger.RDMA, error) {
	host := n.Host()
	if conf.RDMA == netconf.RDMAOff || conf.RDMA == netconf.RDMAAuto && !host.HasRDMA(l) && !isServed(n, l) {
		return nil, nil
	}
	required := conf.RDMA == netconf.RDMARequired
	core, err := rdma.Open(host.Netns)
	if errors.Is(err, rdma.ErrNoRDMA) && !required {
		return nil, nil
	}
	if err != nil {
		return nil, failure.From(err, failure.NotAvailable, "%s", l.Name).
			Cure("load the NIC's RDMA driver (mlx5_ib, bnxt_re, irdma, …), or set \"rdma\": \"off\"")
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return nil, err
	}
	if mode == rdma.Shared {
		allow = []string{netconf.AllowSharedRDMA} // the device does not move, so no other NIC loses it
	}
	found, err := ofNIC(core, host.Netns, l, mode, allow)
	if err != nil {
		if required || !errors.Is(err, nic.ErrSharedRDMA) {
			return nil, err
		}
		warnStays(n, l, err)
		return nil, nil
	}
	if len(found) == 0 {
		if required {
			return nil, failure.New(failure.NotAvailable, `"rdma" is required, but %s has no RDMA device in this netns`, l.Name).
				Cure("load its RDMA driver, or choose a NIC that has an RDMA device (see `rdma link`)")
		}
		return nil, nil
	}
	return &ledger.RDMA{Mode: string(mode), Devices: found}, nil
}

// warnStays logs why the RDMA device of the NIC l is not lent with the NIC.
func warnStays(n *attachment.Node, l *link.Link, why error) {
	n.Log.Warn("RDMA device stays on the host", "nic", l.Name, "err", why)
}

// ofNIC returns the RDMA devices of the NIC l, or of the links by which the packets of l leave. It
// returns an error if a device that moves serves another NIC too.
func ofNIC(core *rdma.Core, host *netns.Netns, l *link.Link, mode rdma.Mode, allow []string) ([]ledger.RDMADevice, error) {
	if mode == rdma.Exclusive {
		device, others, err := ofBond(core, host, l)
		if err == nil && len(others) > 0 {
			err = nic.GuardSharedRDMA(device, l.Name, strings.Join(others, ", "), allow)
		}
		if err != nil {
			return nil, err
		}
	}
	devices, err := core.ServingOf(l)
	if err != nil {
		return nil, err
	}
	var found []ledger.RDMADevice
	for _, d := range devices {
		if len(d.Others) > 0 {
			if err := nic.GuardSharedRDMA(d.Name, l.Name, strings.Join(d.Others, ", "), allow); err != nil {
				return nil, err
			}
		}
		found = append(found, served(core, d, l, mode == rdma.Exclusive))
	}
	return found, nil
}

// recordOf returns the record of an RDMA device. The record has the settings of the device if lent
// is true.
func recordOf(core *rdma.Core, d rdma.Device, lent bool) ledger.RDMADevice {
	r := ledger.RDMADevice{Name: d.Name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev, Lent: lent}
	if u, err := core.Uverbs(d); err == nil {
		r.Uverbs = u.Name
	}
	if lent {
		r.Settings = core.Settings(d)
	}
	return r
}

// findDevice returns the recorded device, or nil if it is not in the core's namespace.
// The device may have another name and index now.
func findDevice(core *rdma.Core, r ledger.RDMADevice) (*rdma.Device, error) {
	d, err := core.ByIdentity(r.NodeGUID, r.ParentDev)
	if errors.Is(err, rdma.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// netnsOf returns the netns in which the pod's devices are visible.
func netnsOf(r *ledger.RDMA, n *attachment.Node, pod *netns.Netns) *netns.Netns {
	if r.Mode == string(rdma.Exclusive) {
		return pod
	}
	return n.Netns
}

// available returns the reason why the RDMA part of an ADD on a NIC of this host cannot work now.
// If RDMA is not required, it returns nil. shares is true for a plugin whose pods share the device,
// which is impossible in exclusive mode.
func available(n *attachment.Node, conf netconf.RDMA, shares bool) error {
	if conf.RDMA != netconf.RDMARequired {
		return nil
	}
	core, err := rdma.Open(n.Netns)
	if err != nil {
		return failure.From(err, failure.NotAvailable, `"rdma" is required`).Cure("load the NIC's RDMA driver")
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil || mode == rdma.Shared || !shares {
		return err
	}
	return failure.New(failure.NotAvailable, "RDMA is in exclusive mode, in which pods cannot share an RDMA device").Cure("%s", rdma.AtBoot(rdma.Shared))
}
