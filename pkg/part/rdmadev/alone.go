package rdmadev

import (
	"context"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// claimAlone records the RDMA devices of a function without a netdev. The pod gets only these
// devices. claimAlone does nothing for a function that a userspace driver holds. If ib_ipoib is
// loaded and an InfiniBand device has no netdev, claimAlone returns an error: the device was just
// made or moved, so its netdev is about to come, and the guardrails must see that netdev.
func (p Moving) claimAlone(ctx context.Context, tx *attachment.Tx) error {
	host, lent := tx.Node.Host(), tx.Record.Loan
	if lent == nil || !lent.RDMAAlone {
		return nil
	}
	core, err := rdma.Open(host.Netns)
	if err != nil {
		return failure.From(err, failure.NotAvailable, "%s", lent.PCI).Cure("load the RDMA driver again")
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return err
	}
	devices, err := core.ByParent(lent.PCI)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return failure.New(failure.NICNotFound, "the RDMA device of %s is not in the host netns", lent.PCI).
			Cure("find the RDMA device with `ip -all netns exec rdma dev`; `railctl show` lists what is lent")
	}
	r := &ledger.RDMA{Mode: string(mode), RoCETOS: p.TOS}
	if err := p.checkIsolation(tx, r); err != nil {
		return err
	}
	for _, d := range devices {
		if err := nic.GuardGUID(lent.PCI, d.IsInfiniBand() && !tx.Record.Rebinds(), uint64(d.NodeGUID)); err != nil {
			return err
		}
		if d.IsInfiniBand() && host.MakesIPoIB() {
			return failure.New(failure.TryAgain, "%s (%s) has no InfiniBand interface yet, although ib_ipoib is loaded", lent.PCI, d.Name).
				Cure("try again; if the interface never comes, see the kernel log, or unload ib_ipoib to lend the RDMA device alone")
		}
		ports, err := core.Ports(d)
		if err == nil && (mode == rdma.Exclusive || tx.Record.Rebinds()) {
			err = p.guardAlone(ctx, tx, core, d, ports)
		}
		if err != nil {
			return err
		}
		recorded := recordOf(core, d, mode == rdma.Exclusive)
		if len(ports) == 1 {
			recorded.Port = ports[0].Number
		}
		r.Devices = append(r.Devices, recorded)
	}
	tx.Record.RDMA = r
	return needsMove(p.TOS, r)
}

// guardAlone returns an error if the host needs the device d, which is to move.
func (p Moving) guardAlone(ctx context.Context, tx *attachment.Tx, core *rdma.Core, d rdma.Device, ports []rdma.Port) error {
	name := tx.Record.Loan.PCI
	for _, port := range ports {
		if port.NetdevName != "" { // the netdev belongs to another function
			if err := nic.GuardSharedRDMA(d.Name, name, port.NetdevName, p.Allow); err != nil {
				return err
			}
		}
	}
	if err := tx.Node.Host().GuardFunctions(name, p.Allow); err != nil {
		return err
	}
	if err := guardInUse(ctx, tx.Node, core, d, name, nobody, p.Allow); err != nil {
		return err
	}
	return guardManager(d.Name, name, ports, p.Allow)
}
