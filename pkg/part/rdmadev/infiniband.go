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

// netdevPart is the name of the part that moves the NIC's netdev.
const netdevPart = "netdev"

// losesInfiniBand returns an error if l is an InfiniBand interface. l is already in the pod, and
// its RDMA device is to move. ib_ipoib, a client of the RDMA device, makes the interface. The move
// of the device destroys the interface with its addresses and settings, and ib_ipoib makes another
// interface in init_net (ipoib_add_one). l is nil if there is no interface.
func losesInfiniBand(l *link.Link, device string) error {
	if l == nil || l.Encap != "infiniband" {
		return nil
	}
	return fmt.Errorf("RDMA is in exclusive mode, and the kernel destroys an InfiniBand interface when its RDMA device %s moves", device)
}

// Confirm applies the guardrail for the ports of one HCA. Each time the RDMA device moves, the
// kernel destroys the InfiniBand interfaces of all its ports, wherever they are. If two ADDs run at
// the same time, both may be refused.
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
		tx.Node.Log.Warn("cannot read a record, which may be that of another port of the HCA", "nic", tx.Record.Loan.Name, "err", err)
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

// makes returns the argument own for [guardInUse]. If the NIC l is an InfiniBand interface, own
// leaves out the kernel client ib_ipoib, which makes the interface.
func makes(l *link.Link) func(rdma.User) bool {
	if l.IsIPoIB() {
		return rdma.User.IsIPoIB
	}
	return nobody
}

// nobody returns false for every user. As own of [guardInUse], it makes every user count.
func nobody(rdma.User) bool { return false }

// guardInfiniBand returns an error if the move of d would destroy other interfaces, or would take
// the port from a subnet manager. d is the device of tx.Parent, an InfiniBand interface.
// guardInfiniBand returns nil if allow overrides the guardrail. The part of the netdev guards the
// children in this namespace.
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
