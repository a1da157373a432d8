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

// Confirm is the guardrail for the ports of one HCA: with each move of the RDMA device the kernel destroys the
// InfiniBand interfaces of all its ports, wherever they are. Of two ADDs at a time both may be refused.
func (p Moving) Confirm(tx *attachment.Tx) error {
	if !tx.Record.LendsNetdev() || tx.Record.Loan.Snapshot == nil || tx.Record.Loan.Snapshot.IPoIB == nil {
		return nil
	}
	parent, moves := tx.Record.Loan.Identity.ParentDev, tx.Record.MadeAnew()
	others, errs := tx.Node.Ledger.Held(tx.Node.Netns.ID, func(r *ledger.Record) bool {
		switch {
		case r.Key == tx.Key || parent == "":
			return false
		case r.LendsRDMAOf(parent), moves && r.Child != nil && r.Child.ParentDev == parent:
			return true
		}
		return moves && r.LendsNetdev() && r.Loan.Identity.ParentDev == parent
	})
	for _, err := range errs {
		tx.Node.Log.Warn("cannot read a record; it may be of another port of the HCA", "nic", tx.Record.Loan.Name, "err", err)
	}
	if len(others) == 0 {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: another port of its HCA is lent to %s, or has a child interface that belongs to that pod, "+
		"and a move of the RDMA device destroys the interfaces of all ports", tx.Record.Loan.Name, others[0].Holder()).
		Cure("end that pod; or %s", rdma.AtBoot(rdma.Shared))
}

// guardManager returns an error if a subnet manager runs on a port of the device, which is to move with the NIC.
func guardManager(device, nicName string, ports []rdma.Port, allow []string) error {
	for _, p := range ports {
		if p.IsSM {
			if err := nic.GuardSubnetManager(device, nicName, p.Number, allow); err != nil {
				return err
			}
		}
	}
	return nil
}

// makes returns the function by which [guardInUse] leaves out the kernel client that makes the NIC l: ib_ipoib,
// if l is an InfiniBand interface.
func makes(l *link.Link) func(rdma.User) bool {
	if l.IsIPoIB() {
		return rdma.User.IsIPoIB
	}
	return nobody
}

// nobody reports false for each user: with it [guardInUse] counts all.
func nobody(rdma.User) bool { return false }

// guardInfiniBand returns an error if the move of the device d of tx.Parent, an InfiniBand interface, would
// destroy other interfaces, or take the port from a subnet manager, unless allow overrides that guardrail.
// The part of the netdev guards children in this namespace.
func guardInfiniBand(tx *attachment.Tx, core *rdma.Core, d rdma.Device, allow []string) error {
	ports, err := core.Ports(d)
	if err != nil {
		return err
	}
	if err := guardManager(d.Name, tx.Parent.Name, ports, allow); err != nil {
		return err
	}
	links, err := link.Links(tx.Node.Netns)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == d.ParentDev && l.Index != tx.Parent.Index {
			if err := nic.GuardOtherPort(d.Name, tx.Parent.Name, l.Name, allow); err != nil {
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
	return nic.GuardFarInterfaces(tx.Parent.Name, far, allow)
}
