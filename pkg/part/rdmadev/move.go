package rdmadev

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// moveWait bounds one move of an RDMA device, and the wait for the node's lock: on a
// node with eight NICs, at most eight moves come before ours.
const moveWait = 30 * time.Second

// Apply moves the lent RDMA devices into the pod netns, one after another under the
// node's lock.
func (devices) Apply(ctx context.Context, tx *attachment.Tx) error {
	r := tx.Record.RDMA
	if r == nil || !slices.ContainsFunc(r.Devices, func(d ledger.RDMADevice) bool { return d.Lent }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	return withCores(ctx, tx.Node, tx.Node.Netns, tx.Pod, func(host, pod *rdma.Core) error {
		for _, d := range r.Devices {
			if !d.Lent {
				continue
			}
			device, err := findDevice(host, d)
			if err == nil && device == nil {
				err = rdma.ErrNotFound
			}
			if err == nil {
				_, err = host.Move(ctx, *device, pod)
			}
			if err != nil {
				return failure.WithCure(failure.Wrap(err, failure.Kernel, "RDMA device %s", d.Name), cureOfMove(err))
			}
		}
		return nil
	})
}

func cureOfMove(err error) string {
	switch {
	case errors.Is(err, rdma.ErrImmovable):
		return `lend its NICs in shared mode, or set "rdma": "off" for a NIC without RDMA`
	case errors.Is(err, rdma.ErrShared):
		return "the mode changed while the NIC was lent; try again"
	}
	return ""
}

// withCores opens the RDMA core in two namespaces and holds the node's lock
// while f moves devices between them.
func withCores(ctx context.Context, n *attachment.Node, from, to *link.Netns, f func(from, to *rdma.Core) error) error {
	lock, err := n.Ledger.LockRDMA(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	source, err := rdma.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := rdma.Open(to)
	if err != nil {
		return err
	}
	defer target.Close()
	return f(source, target)
}
