package ipoib

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/parent"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
)

// Part is a child of an InfiniBand interface that stays on the host. It must be claimed before the
// RDMA devices, because they are found by [attachment.Tx.Parent], which this part sets.
type Part struct {
	attachment.Base
	Conf *netconf.IPoIB
}

// Name implements [attachment.Part].
func (Part) Name() string { return "ipoib" }

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.Child != nil && r.Child.Kind == link.KindIPoIB }

// find returns the interface of the port. It returns an error if the interface cannot carry a
// child, or if the node file forbids the interface.
func (p Part) find(n *attachment.Node) (parent.Found, error) {
	c := p.Conf
	found, err := parent.Of(parent.Conf{
		Master: c.Master, Rail: c.Rail, IDs: c.IDs(), NeedsRail: c.NeedsRail(), RailCure: c.RailCure,
	}, n, n.Netns)
	if err != nil {
		return found, err
	}
	l, host := found.Link, n.Host()
	switch {
	case l.IsIPoIBChild():
		return found, failure.New(failure.InvalidConfig, "master %s is an IPoIB child, and the kernel makes no child of a child", l.Name).
			Cure("set \"master\" to the interface of the port")
	case !l.IsIPoIB():
		return found, failure.New(failure.InvalidConfig, "master %s is not an InfiniBand interface", l.Name).
			Cure("set \"master\" to an InfiniBand interface (see `ip link show type ipoib`), or use macvlan on Ethernet")
	case !l.IsUp():
		return found, failure.New(failure.NotAvailable, "master %s is down, and so are its children", l.Name).Cure("ip link set %s up", l.Name)
	}
	return found, host.Permit(host.NICOf(l), n.File, nil)
}

// Claim finds the interface of the port and the partition.
func (p Part) Claim(_ context.Context, tx *attachment.Tx) error {
	found, err := p.find(tx.Node)
	if err != nil {
		return err
	}
	found.SetRail(tx)
	tx.Parent = found.Link
	key, err := p.partition(tx.Node, found.Link)
	if err != nil {
		return err
	}
	if !key.IsFull() {
		err := failure.New(failure.NotAvailable, "%s is a limited member of partition %#04x: its pods reach only full members, and cannot reach each other",
			found.Link.Name, key.Key).
			Cure("make the port a full member in the subnet manager's partitions")
		if p.Conf.RDMA.RDMA == netconf.RDMARequired {
			return err
		}
		tx.Node.Log.Warn("master is a limited member of the partition", "err", err)
	}
	tx.Record.Child = &ledger.Child{
		Kind: link.KindIPoIB, Master: found.Link.Name, MasterIndex: found.Link.Index, ParentDev: found.Link.ParentDev, PKey: key.Partition() | 1<<15,
	}
	return nil
}

// partition returns the entry of the port's P_Key table for the partition of the network. If the
// network names no partition, it returns the entry for the partition of the master. If the port is
// not a member of the partition, the error has kind TryAgain, because a fabric manager may be about
// to add the port.
func (p Part) partition(n *attachment.Node, l *link.Link) (ibaddr.PKey, error) {
	want := uint16(p.Conf.PKey)
	if want == 0 {
		want = l.IPoIB.PKey
	}
	core, err := rdma.Open(n.Netns)
	if err != nil {
		return ibaddr.PKey{}, err
	}
	defer core.Close()
	device, port, err := portOf(core, l)
	if err != nil {
		return ibaddr.PKey{}, err
	}
	key, ok, keys, err := core.Member(device, port, want)
	if ok || err != nil {
		return key, err
	}
	has := make([]string, len(keys))
	for i, k := range keys {
		has[i] = fmt.Sprintf("%#04x", k.Key)
	}
	return ibaddr.PKey{}, failure.New(failure.TryAgain,
		"port %d of the RDMA device %s (%s) is not a member of partition %#04x; its partition keys are %s",
		port, device.Name, l.Name, (ibaddr.PKey{Key: want}).Partition(), strings.Join(has, ", ")).
		Cure("make the port a member in the subnet manager's partitions, or correct \"pkey\"")
}

// portOf returns the RDMA device and the port of an InfiniBand interface.
func portOf(core *rdma.Core, l *link.Link) (rdma.Device, uint32, error) {
	devices, err := core.ByParent(l.ParentDev)
	if err != nil {
		return rdma.Device{}, 0, err
	}
	pairs, err := netdevs.PairsOf(core, devices, []*link.Link{l})
	for _, pair := range pairs {
		for _, d := range devices {
			if pair.Netdev == l.Name && d.Name == pair.Device {
				return d, pair.Port, nil
			}
		}
	}
	if err == nil {
		err = failure.New(failure.NotAvailable, "%s has no port of an RDMA device in this netns", l.Name).Cure("see `rdma link` and `railctl ibdev2netdev`")
	}
	return rdma.Device{}, 0, err
}

// Confirm returns an error if the parent is lent, or if the RDMA device that makes the parent is
// lent together with the device's other port. An ADD that lends the parent first writes its record
// and then looks for ours, so at least one of the two ADDs sees the other. The error is returned
// even if the pod that has the parent is gone: when the parent returns, the children that this pod
// made are deleted, and our child could be mistaken for one of them.
func (p Part) Confirm(tx *attachment.Tx) error {
	parent := tx.Parent.ParentDev
	holders, errs := tx.Node.Ledger.Held(tx.Node.Netns.ID, func(r *ledger.Record) bool {
		return r.Key != tx.Key && (r.LendsNetdev() && r.Loan.Identity.ParentDev == parent && r.Loan.Identity.Hardware() == tx.Parent.Identity().Hardware() ||
			r.LendsRDMAOf(parent))
	})
	for _, err := range errs {
		tx.Node.Log.Warn("cannot read a record, which may be that of this NIC, lent to a pod", "nic", tx.Parent.Name, "err", err)
	}
	if len(holders) > 0 {
		return ledger.LentTo(holders[0])
	}
	return nil
}

// Apply makes the child on the host and moves it into the pod netns, down and without addresses.
// Before the move, Apply records the permanent address of the child, by which the child can be
// found wherever it goes.
func (p Part) Apply(_ context.Context, tx *attachment.Tx) error {
	host, child := tx.Node.Netns, tx.Record.Child
	name := tempName(tx.Record)
	err := link.CreateIPoIBChild(host, link.IPoIBChild{
		Parent: child.MasterIndex, Name: name, PKey: child.PKey, Umcast: p.Conf.Umcast == nil || *p.Conf.Umcast,
	})
	if err != nil {
		return refused(child, err)
	}
	l, err := link.ByName(host, name)
	if err != nil {
		return err
	}
	if len(l.PermMAC) != link.IPoIBAddress {
		return failure.New(failure.Kernel, "the child of %s has the permanent address %q, which does not have %d bytes", child.Master, l.PermMAC, link.IPoIBAddress).
			Cure("see the kernel log")
	}
	child.PermMAC, child.Made = l.PermMAC.String(), time.Now().UTC()
	if err := errors.Join(tx.Step("made"), tx.Node.Ledger.Put(tx.Record)); err != nil {
		return err
	}
	if err := link.Move(host, l.Index, tx.Pod, tx.IfName, ""); err != nil {
		return failure.From(err, failure.Kernel, "move the child of %s into the pod", child.Master).Cure("see the kernel log")
	}
	if l, err = link.ByName(tx.Pod, tx.IfName); err != nil {
		return err
	}
	child.PodIndex = l.Index
	if err := link.RandomAddrGen(tx.Pod, l.Index); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // the kernel has no IPv6
		return failure.From(err, failure.Kernel, "set how interface %s chooses its link-local address", tx.IfName).Cure("see the kernel log")
	}
	if p.Conf.MTU != 0 {
		if err := link.SetMTU(tx.Pod, l.Index, p.Conf.MTU); err != nil {
			return failure.From(err, failure.InvalidConfig, "a child of %s cannot have MTU %d", child.Master, p.Conf.MTU).
				Cure(`set a smaller "mtu"`)
		}
	}
	if tx.Link, err = link.ByIndex(tx.Pod, l.Index); err != nil {
		return err
	}
	tx.Record.MAC = tx.Link.MAC.String()
	return tx.Step("mtu")
}

// tempName returns the name that the child of the attachment has on the host before it moves.
func tempName(r *ledger.Record) string {
	return fmt.Sprintf("rail%011x", r.Created.UnixNano()&0xfffffffffff)
}

// refused returns the error for a child that the kernel refused to make.
func refused(child *ledger.Child, err error) error {
	if errors.Is(err, unix.ENODEV) {
		return failure.From(err, failure.TryAgain, "master %s was removed or moved while its child was made", child.Master).Cure(`see "ip link"`)
	}
	return failure.From(err, failure.Kernel, "the kernel refused a child of %s in partition %#04x", child.Master, child.PKey).Cure("see the kernel log")
}

// Check returns an error unless the interface is a child such as ADD makes.
func (p Part) Check(_ context.Context, c *attachment.Checking) error {
	l := c.Link
	switch {
	case l == nil:
		return attachment.Mismatch("interface %s is not in netns %s", c.IfName, c.Netns)
	case !l.IsIPoIBChild():
		return attachment.Mismatch("interface %s has kind %s, want ipoib", l.Name, l.Kind)
	case c.Record == nil || c.Record.Child == nil:
		return nil
	}
	child := c.Record.Child
	switch {
	case l.PermMAC.String() != child.PermMAC:
		return attachment.Mismatch("interface %s is another child of %s", l.Name, child.Master)
	case l.IPoIB.PKey != child.PKey:
		return attachment.Mismatch("interface %s is in partition %#04x, not %#04x", l.Name, l.IPoIB.PKey, child.PKey)
	case l.IPoIB.Connected():
		return attachment.Mismatch("interface %s is in connected mode, not in datagram mode", l.Name)
	}
	return nil
}

// Available returns the reason why the configured port cannot be used, or nil if it can be used.
func (p Part) Available(n *attachment.Node) error {
	found, err := p.find(n)
	if err == nil {
		_, err = p.partition(n, found.Link)
	}
	return err
}
