package rdmadev

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// moveWait bounds one move of an RDMA device. It also bounds the wait for the node's lock: on a
// node with eight NICs, at most eight moves come before ours.
const moveWait = 30 * time.Second

// move moves the lent RDMA devices into the pod netns, one after another under the
// node's lock. If tos is not nil, it becomes RDMA-CM's type of service there.
func (devices) move(ctx context.Context, tx *attachment.Tx, tos *int) error {
	r := tx.Record.RDMA
	if r == nil || !slices.ContainsFunc(r.Devices, func(d ledger.RDMADevice) bool { return d.Lent }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	return withCores(ctx, tx.Node, tx.Node.Netns, tx.Pod, func(host, pod *rdma.Core) error {
		for i := range r.Devices {
			d := &r.Devices[i]
			if !d.Lent {
				continue
			}
			arrived, err := moveOne(ctx, tx, host, pod, d)
			if err != nil {
				return failure.From(err, failure.Kernel, "RDMA device %s", d.Name).Cure("%s", cureOfMove(err))
			}
			if err := keepCM(ctx, tx.Node, pod, arrived, *d, tos); err != nil {
				return err
			}
		}
		return nil
	})
}

// moveOne moves a device from the host into the pod.
func moveOne(ctx context.Context, tx *attachment.Tx, host, pod *rdma.Core, d *ledger.RDMADevice) (rdma.Device, error) {
	device, err := findDevice(host, *d)
	if err == nil && device == nil {
		err = rdma.ErrNotFound
	}
	if err == nil {
		err = noteName(tx, d, device.Name)
	}
	if err != nil {
		return rdma.Device{}, err
	}
	began := time.Now()
	arrived, err := host.Move(ctx, *device, pod)
	tx.NoteMove(time.Since(began))
	return arrived.Device, errors.Join(err, noteName(tx, d, arrived.Before)) // the device may have moved in spite of err
}

// noteName records the name under which the device leaves the host. The device gets this name back
// when it returns. The name may have changed since Claim, because udev names a device some time
// after its driver has made it. The name that the device has in the pod cannot be used, because the
// pod may have chosen that name.
func noteName(tx *attachment.Tx, d *ledger.RDMADevice, name string) error {
	if name == "" || name == d.Name {
		return nil
	}
	d.Name = name
	return tx.Node.Ledger.Put(tx.Record)
}

// serveWait bounds the wait until RDMA-CM serves a device that has moved. It usually does as
// soon as the move ends.
const serveWait = 5 * time.Second

// keepCM restores the RDMA-CM settings that the device had on the host. If tos is not nil, keepCM
// sets the type of service to tos.
func keepCM(ctx context.Context, n *attachment.Node, pod *rdma.Core, device rdma.Device, recorded ledger.RDMADevice, tos *int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveWait)
	defer cancel()
	for _, c := range pod.Restore(ctx, device, device.CMSettings(recorded.Settings, tos)) {
		if tos != nil && strings.HasSuffix(c.Setting, rdma.CMTypeOfService) {
			return failure.From(c.Err, failure.Kernel, "RDMA device %s: set %s", device.Name, c.Setting).Cure(`load rdma_cm, or remove "roceTos"`)
		}
		n.Log.Warn("cannot keep an RDMA-CM setting in the pod", "device", device.Name, "setting", c.Setting, "err", c.Err)
	}
	return nil
}

// needsMove returns an error if a type of service is configured for devices that do not move.
// RDMA-CM has one type of service for each port, and a port of a device that does not move serves
// all network namespaces.
func needsMove(tos *int, r *ledger.RDMA) error {
	if tos == nil || r == nil || slices.ContainsFunc(r.Devices, func(d ledger.RDMADevice) bool { return d.Lent }) {
		return nil
	}
	if r.Mode == string(rdma.Exclusive) {
		return failure.New(failure.NotAvailable, `"roceTos": another plugin has already moved the RDMA device into the pod`).
			Cure(`give "roceTos" to host-device of rail-cni, or leave it out`)
	}
	return failure.New(failure.NotAvailable, `"roceTos": RDMA is in shared mode, in which the RDMA device and its settings belong to the host`).
		Cure(`set it on the host (cma_roce_tos); or %s; or leave out "roceTos"`, rdma.AtBoot(rdma.Exclusive))
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
func withCores(ctx context.Context, n *attachment.Node, from, to *netns.Netns, f func(from, to *rdma.Core) error) error {
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
