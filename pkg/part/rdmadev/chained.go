package rdmadev

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// homeWait bounds the wait for RDMA devices that are on their way from a dead pod to the host.
const homeWait = 5 * time.Second

// lockWait bounds the wait for another ADD that claims the devices of the same NIC.
const lockWait = 60 * time.Second

// Chained is the part of the chained plugin rdma, which comes after the plugin that made the pod's
// interface. It handles the RDMA devices of the interface's NIC. In exclusive mode it moves the
// devices. In shared mode it only records them.
type Chained struct {
	devices
	Conf *netconf.RDMAChained

	nic *lowerNIC // set by Claim
}

// Off implements [attachment.Chained].
func (p *Chained) Off() bool { return p.Conf.RDMA.RDMA == netconf.RDMAOff }

// InPlace reports whether the lent RDMA devices are in the pod netns.
func (*Chained) InPlace(r *ledger.Record, pod *netns.Netns) bool {
	core, err := rdma.Open(pod)
	if err != nil {
		return false
	}
	defer core.Close()
	for _, d := range r.RDMA.Devices {
		if device, err := findDevice(core, d); d.Lent && (err != nil || device == nil) {
			return false
		}
	}
	return true
}

// Forget implements [attachment.Chained].
func (*Chained) Forget(r *ledger.Record) { r.RDMA = nil }

// Holder returns the record of the attachment that has the RDMA devices.
func (p *Chained) Holder(tx *attachment.Tx) (*ledger.Record, error) {
	b, err := findBehind(tx.Node, tx.Call, tx.Pod, p.Conf)
	if err != nil || b.parent == "" { // a VLAN or bond has no device that moves
		return nil, nil //nolint:nilerr // Claim reports the error
	}
	holder, _ := holderOf(tx.Node, b.parent, tx.Key)
	return holder, nil
}

// Claim decides which RDMA devices the attachment gets. If there are none and the configuration
// does not require RDMA, it records nothing.
func (p *Chained) Claim(ctx context.Context, tx *attachment.Tx) error {
	n := tx.Node
	b, err := findBehind(n, tx.Call, tx.Pod, p.Conf)
	if err != nil || b.unknown() {
		return err
	}
	p.nic = b
	locking, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := n.Ledger.LockNIC(locking, "rdma "+b.parent)
	if err != nil {
		return err
	}
	tx.UntilRecorded(func() { _ = lock.UnlockAndRemove() })
	holder, unread := holderOf(n, b.parent, tx.Key)
	if holder != nil {
		return ledger.LentTo(holder)
	}
	found, err := p.find(ctx, tx, b)
	switch {
	case unread == nil:
	case elsewhere(found, err):
		return errors.Join(err, unread)
	default:
		n.Log.Warn("cannot read a record, which is ignored because the RDMA devices are on the host", "parentDev", b.parent, "err", unread)
	}
	switch {
	case err == nil:
		found.RoCETOS = p.Conf.RoCETOS
		tx.Record.RDMA = found
		return needsMove(p.Conf.RoCETOS, found)
	case p.Conf.RDMA.RDMA == netconf.RDMARequired:
		return err
	case errors.Is(err, rdma.ErrNoRDMA), errors.Is(err, errNoDevice):
		return nil
	case errors.Is(err, nic.ErrSharedRDMA), errors.Is(err, nic.ErrInUse), errors.Is(err, errNotForPod):
		n.Log.Warn("pod gets no RDMA", "interface", tx.IfName, "err", err)
		return nil
	default:
		return err
	}
}

// Apply moves the devices, and records the interface's port.
func (p *Chained) Apply(ctx context.Context, tx *attachment.Tx) error {
	if err := p.move(ctx, tx, p.Conf.RoCETOS); err != nil {
		return err
	}
	if err := errors.Join(tx.Step("port"), notePorts(tx, p.nic)); err != nil {
		return err
	}
	if r := tx.Record; !r.HasInterface() { // for people who read the record; a record with an interface already has this
		if l := p.nic.pod; l != nil {
			r.MAC, r.MTU, r.RDMA.PodIndex = l.MAC.String(), l.MTU, l.Index
		}
		for _, ip := range tx.Layer3.IPs {
			r.Addresses = append(r.Addresses, ip.Address.String())
		}
		r.Gateways = attachment.GatewaysOf(tx.Layer3.IPs)
	}
	return nil
}

// find returns the RDMA devices of the NIC.
func (p *Chained) find(ctx context.Context, tx *attachment.Tx, b *lowerNIC) (*ledger.RDMA, error) {
	n, allow := tx.Node, p.Conf.Allow
	host, err := rdma.Open(n.Netns)
	if err != nil {
		return nil, failure.From(err, failure.NotAvailable, "%s", b).Cure(`load the NIC's RDMA driver (mlx5_ib, bnxt_re, irdma, …), or set "rdma": "auto"`)
	}
	defer host.Close()
	pod, err := rdma.Open(tx.Pod)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	mode, err := host.Mode()
	if err != nil {
		return nil, err
	}
	exclusive := mode == rdma.Exclusive
	if exclusive && b.child() {
		return nil, failure.From(errNotForPod, failure.NotAvailable, "RDMA is in exclusive mode, and %s lies on %s, which stays on the host",
			tx.IfName, b.netdev.Name).
			Cure("%s; or lend whole NICs with host-device", rdma.AtBoot(rdma.Shared))
	}
	if !exclusive {
		if r, err := b.sharedBy(); r != nil || err != nil {
			return r, err
		}
	}
	if b.parent == "" {
		return nil, failure.From(errNoDevice, failure.NotAvailable, "%s", b).
			Cure(`see "rdma link" for the NICs that have an RDMA device, or set "rdma": "auto"`)
	}
	devices, in, err := devicesOf(ctx, tx, b.parent, place{host, n.Netns}, place{pod, tx.Pod})
	if err != nil {
		return nil, err
	}
	move := exclusive && in.ns == n.Netns
	if move {
		if err := losesInfiniBand(b.netdev, devices[0].Name); err != nil {
			return nil, failure.From(errNotForPod, failure.NotAvailable, "interface %s: %v", tx.IfName, err).
				Cure(`lend the interface and its RDMA device with host-device, without "rdma": "off" and without this plugin; or %s; `+
					`or use "rdmaIsolation" of ib-sriov-cni`, rdma.AtBoot(rdma.Shared))
		}
		if err := n.Host().Permit(nicOf(n, b), n.File, allow); err != nil {
			return nil, err
		}
	}
	r := &ledger.RDMA{Mode: string(mode)}
	for _, d := range devices {
		ok, err := fits(tx, in, d, b, move, allow)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if move {
			if err := guardInUse(ctx, n, in.core, d, tx.IfName, nobody, allow); err != nil {
				return nil, err
			}
		}
		r.Devices = append(r.Devices, recordOf(in.core, d, move))
	}
	if len(r.Devices) == 0 {
		return nil, noDevice(b.parent)
	}
	return r, nil
}

// elsewhere reports whether the NIC has RDMA devices that are not on the host. found and err are
// the result of find.
func elsewhere(found *ledger.RDMA, err error) bool {
	if err != nil {
		return errors.Is(err, errOtherNetns)
	}
	return found.Mode == string(rdma.Exclusive) && !slices.ContainsFunc(found.Devices, func(d ledger.RDMADevice) bool { return d.Lent })
}

// holderOf returns the record of another attachment that holds RDMA devices of parent, a device of
// the host. If it finds none but could not read all records, it returns an error, because the
// holder's record may be one of the unreadable records.
func holderOf(n *attachment.Node, parent string, self ledger.Key) (holder *ledger.Record, unread error) {
	holders, errs := n.Ledger.Held(ledger.Anywhere, func(r *ledger.Record) bool {
		return r.Key != self && r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d ledger.RDMADevice) bool { return d.Lent && d.ParentDev == parent })
	})
	if len(holders) == 0 {
		return nil, errors.Join(errs...)
	}
	return holders[0], nil
}

// HeldByAnother reports whether another attachment holds RDMA devices of parent. It is for a DEL,
// which must not fail because of the records of other attachments: so records that cannot be read
// are ignored.
func HeldByAnother(n *attachment.Node, parent string, self ledger.Key) bool {
	holder, unread := holderOf(n, parent, self)
	if unread != nil {
		n.Log.Warn("cannot read a record, which may be that of an attachment with these RDMA devices", "parentDev", parent, "err", unread)
	}
	return holder != nil
}

// Check compares the RDMA devices with the record. If RDMA is required and nothing is recorded, it
// looks for an RDMA device of the NIC in the pod.
func (p *Chained) Check(_ context.Context, c *attachment.Checking) error {
	switch {
	case c.Record != nil && c.Record.RDMA != nil:
		return check(c, p.Conf.RDMA)
	case p.Conf.RDMA.RDMA != netconf.RDMARequired:
		return nil
	}
	b, err := findBehind(c.Node, c.Call, c.Pod, p.Conf)
	if err != nil {
		return err
	}
	core, err := rdma.Open(c.Pod)
	if err != nil {
		return failure.From(err, failure.Mismatch, "interface %s", c.IfName).Cure("load the driver again and recreate the pod")
	}
	defer core.Close()
	found, err := core.ByParent(b.parent)
	if err == nil && len(found) == 0 {
		if r, _ := b.sharedBy(); r != nil {
			return nil
		}
		err = attachment.Mismatch("no RDMA device of %s is in netns %s", b, c.Netns)
	}
	return err
}

// Available implements [attachment.Part].
func (p *Chained) Available(n *attachment.Node) error { return available(n, p.Conf.RDMA, false) }
