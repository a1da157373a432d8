package netdev

import (
	"context"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// renewed returns the InfiniBand interface that the kernel made when the RDMA device moved or when
// its driver was bound again. It also returns the netns of the interface, which the caller closes
// if it is not the host netns. The kernel makes the interface in init_net, before the move or the
// bind is complete. renewed gives the interface the settings that the former interface would have
// kept on its way into the pod.
func renewed(ctx context.Context, tx *attachment.Tx) (*link.Link, *netns.Netns, error) {
	lent := tx.Record.Loan
	// Some settings are set by the name of the interface, which a NIC that returns could take.
	lock, err := tx.Node.Ledger.LockNames(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = lock.Unlock() }()
	l, ns, err := findRenewed(tx.Node.Netns, lent.Identity)
	if err != nil {
		return nil, nil, err
	}
	settings := *lent.Snapshot
	if tx.Record.Rebinds() {
		settings.MAC, settings.Broadcast = "", "" // these contain the former GUID and partition
	}
	left, err := nicstate.Renew(ns, l, &settings)
	if err == nil {
		l, err = link.ByIndex(ns, l.Index)
	}
	if err != nil {
		if ns != tx.Node.Netns {
			ns.Close()
		}
		return nil, nil, failure.From(err, failure.TryAgain, "lend %s, which the kernel has re-created", lent.Name).
			Cure("see the kernel log for the driver's reason")
	}
	for _, c := range left {
		tx.Node.Log.Warn("cannot keep a setting of the NIC in the pod", "nic", lent.Name, "setting", c.Setting, "err", c.Err)
	}
	return l, ns, nil
}

// findRenewed finds the interface with this identity on the host. If it is not on the host,
// findRenewed looks in init_net. The interface may have any name, because the kernel chooses a free
// name and udev may be renaming the interface.
func findRenewed(host *netns.Netns, id link.Identity) (*link.Link, *netns.Netns, error) {
	l, err := link.Find(host, id)
	if l != nil || err != nil {
		return l, host, err
	}
	first, err := netns.Open(netns.InitPath)
	if err != nil {
		return nil, nil, err
	}
	if l, err = link.Find(first, id); l != nil {
		return l, first, nil
	}
	first.Close()
	if err == nil {
		err = failure.New(failure.TryAgain, "the kernel has not made a new InfiniBand interface for %s since the former interface was destroyed", id.ParentDev).
			Cure("load ib_ipoib if `lsmod` does not list it; otherwise see the messages of ib_ipoib in the kernel log")
	}
	return nil, nil, err
}
