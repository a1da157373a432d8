package rdmadev

import (
	"fmt"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// netdevPart is the name of the part of the NIC's netdev.
const netdevPart = "netdev"

// losesInfiniBand returns an error if l, which is in the pod already, is an InfiniBand interface, because its
// RDMA device is to move. ib_ipoib, a client of the RDMA device, makes the interface. The move destroys it with
// its addresses and settings, and makes another one in init_net (ipoib_add_one). A nil l is no interface.
func losesInfiniBand(l *link.Link, device string) error {
	if l == nil || l.Encap != "infiniband" {
		return nil
	}
	return fmt.Errorf("RDMA is in exclusive mode, and the kernel destroys an InfiniBand interface when its RDMA device %s moves", device)
}

// guardLentDevice returns an error if tx.Parent is the InfiniBand interface of an RDMA device that is lent with
// another port: the kernel destroys the interface, wherever it is, when the device returns.
func guardLentDevice(tx *attachment.Tx) error {
	l := tx.Parent
	if !l.IsIPoIB() {
		return nil
	}
	holders, errs := tx.Node.Ledger.Held(tx.Node.Netns.ID, func(r *ledger.Record) bool {
		return r.Key != tx.Key && slices.ContainsFunc(lentOf(r), func(d ledger.RDMADevice) bool { return d.ParentDev == l.ParentDev })
	})
	for _, err := range errs {
		tx.Node.Log.Warn("unreadable record, perhaps of the NIC's RDMA device", "nic", l.Name, "err", err)
	}
	if len(holders) == 0 {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: its RDMA device is lent to %s with another port, and the kernel destroys the interface when the device returns", l.Name, holders[0].Holder()).
		Cure("%s; or end that pod", rdma.AtBoot(rdma.Shared))
}

// makes returns a function for [guardInUse] that reports whether a user of the RDMA device is the kernel client
// that makes the NIC l: ib_ipoib, if l is an InfiniBand interface.
func makes(l *link.Link) func(rdma.User) bool {
	if l.IsIPoIB() {
		return rdma.User.IsIPoIB
	}
	return nobody
}

// nobody is for [guardInUse]: all users count.
func nobody(rdma.User) bool { return false }

// guardInfiniBand returns an error if the move of the device d of tx.Parent, an InfiniBand interface, would
// destroy other interfaces that are in use, or take the port from a subnet manager, unless allow overrides
// that guardrail. Children in this namespace are the guardrail of the netdev's part.
func guardInfiniBand(tx *attachment.Tx, core *rdma.Core, d rdma.Device, allow []string) error {
	ports, err := core.Ports(d)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.IsSM {
			if err := nic.GuardSubnetManager(d.Name, tx.Parent.Name, p.Number, allow); err != nil {
				return err
			}
		}
	}
	links, err := tx.Node.Netns.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == d.ParentDev && l.Index != tx.Parent.Index && (l.IsUp() || l.Master != 0) {
			if err := nic.GuardSharedRDMA(d.Name, tx.Parent.Name, l.Name, allow); err != nil {
				return err
			}
		}
	}
	far, err := core.IPoIBQueuePairs(d)
	if err != nil {
		return err
	}
	far = slices.DeleteFunc(far, func(qp uint32) bool {
		return slices.ContainsFunc(links, func(l *link.Link) bool { return l.QueuePair() == qp })
	})
	return nic.GuardFarChildren(tx.Parent.Name, far, allow)
}
