package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// recreatedWait bounds the wait for a device that was moved into a running pod. A privileged
// process there can take it away at once, and the node's lock is held meanwhile.
const recreatedWait = 5 * time.Second

// HasLent reports whether the record says that RDMA devices have moved into the pod.
func HasLent(r *ledger.Record) bool { return len(lentOf(r)) > 0 }

// OnHost returns a function that reports whether a device which a record says is lent is
// on the host. It enters no pod: a socket there would delay the end of a dying pod's
// netns, and so the return of its NICs.
func OnHost(n *attachment.Node) (func(r *ledger.Record) bool, error) {
	var devices []rdma.Device
	core, err := rdma.Open(n.Netns)
	if err == nil {
		defer core.Close()
		devices, err = core.Devices()
	}
	if err != nil && !errors.Is(err, rdma.ErrNoRDMA) { // without an RDMA core the pods lack their devices, too
		return nil, err
	}
	return func(r *ledger.Record) bool {
		return slices.ContainsFunc(lentOf(r), func(lent ledger.RDMADevice) bool {
			return slices.ContainsFunc(devices, func(d rdma.Device) bool {
				return d.NodeGUID == lent.NodeGUID && d.ParentDev == lent.ParentDev
			})
		})
	}, nil
}

// lentOf returns the RDMA devices that have moved into the pod, by the record.
func lentOf(r *ledger.Record) []ledger.RDMADevice {
	if r.RDMA == nil || r.Phase != ledger.Lent {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.RDMA.Devices), func(d ledger.RDMADevice) bool { return !d.Lent })
}

// Missing returns those RDMA devices of the attachment that are not in its living pod.
// A driver that resets (health recovery, devlink reload) re-creates its device, and the
// kernel puts the new one into its first network namespace (_ib_alloc_device).
func Missing(n *attachment.Node, r *ledger.Record) ([]ledger.RDMADevice, error) {
	lent := lentOf(r)
	// The path must lead to the netns: a kernel without cookies may have given the inode
	// number of a dead pod's netns to another pod's.
	if len(lent) == 0 || !n.Ledger.Holds(r) || !netns.Alive(r.Netns.ID, r.Netns.Path) {
		return nil, nil
	}
	var missing []ledger.RDMADevice
	pod, err := netns.Find(r.Netns.ID, r.Netns.Path)
	if err != nil || pod == nil {
		return nil, err
	}
	defer pod.Close()
	core, err := rdma.Open(pod)
	if err != nil && !errors.Is(err, rdma.ErrNoRDMA) {
		return nil, err
	}
	defer core.Close()
	for _, d := range lent {
		var device *rdma.Device
		if core != nil {
			if device, err = findDevice(core, d); err != nil {
				return nil, err
			}
		}
		if device == nil {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// MoveRecreated moves the missing devices of the attachment from the host into its pod
// again, and restores their names and settings. It reports whether it moved one: an ADD or
// DEL may have been faster. The error wraps [statefile.ErrBusy] if an ADD or DEL of the
// attachment is under way, and [rdma.ErrNotFound] if a device is not on the host either.
func MoveRecreated(ctx context.Context, n *attachment.Node, judged *ledger.Record) (moved bool, err error) {
	lock, err := n.Ledger.TryLockAttachment(judged.Key)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	r, err := n.Ledger.Get(judged.Key)
	if errors.Is(err, ledger.ErrNoRecord) || err == nil && !r.Same(judged) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	missing, err := Missing(n, r)
	if err != nil || len(missing) == 0 {
		return false, err
	}
	pod, err := netns.Find(r.Netns.ID, r.Netns.Path)
	if err != nil || pod == nil {
		return false, err
	}
	defer pod.Close()
	locking, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	err = withCores(locking, n, n.Netns, pod, func(host, there *rdma.Core) error {
		var errs []error
		for _, d := range missing {
			err := moveRecreated(ctx, n, host, there, d, r.RDMA.RoCETOS)
			moved = moved || err == nil
			errs = append(errs, failure.Wrap(err, failure.Kernel, "RDMA device %s", d.Name))
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, rdma.ErrNoRDMA) {
		err = fmt.Errorf("%w: %w", rdma.ErrNotFound, err)
	}
	return moved, err
}

func moveRecreated(ctx context.Context, n *attachment.Node, host, pod *rdma.Core, d ledger.RDMADevice, tos *int) error {
	ctx, cancel := context.WithTimeout(ctx, recreatedWait)
	defer cancel()
	device, err := findDevice(host, d)
	if err != nil {
		return err
	}
	if device == nil {
		return rdma.ErrNotFound
	}
	arrived, err := host.Move(ctx, *device, pod)
	var changed *rdma.UverbsChanged
	if errors.As(err, &changed) { // it has moved
		n.Log.Warn("RDMA device has another uverbs number", "device", d.Name, "err", err)
		err = nil
	}
	if err != nil {
		return err
	}
	if arrived.Device.Name != d.Name {
		if err := pod.Rename(arrived.Device, d.Name); err != nil {
			n.Log.Warn("RDMA device keeps the name that its driver gave it", "device", d.Name, "name", arrived.Device.Name, "err", err)
		} else {
			arrived.Device.Name = d.Name
		}
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), serveWait)
	defer cancel()
	for _, c := range pod.Restore(ctx, arrived.Device, inPod(arrived.Device, d, tos)) {
		n.Log.Warn("cannot restore a setting of the RDMA device", "device", d.Name, "setting", c.Setting, "err", c.Err)
	}
	return nil
}

// inPod returns the settings of the device in the pod: those that it had on the host, and
// the type of service of the pod's network.
func inPod(device rdma.Device, d ledger.RDMADevice, tos *int) map[string]string {
	settings := map[string]string{}
	maps.Copy(settings, d.Settings)
	maps.Copy(settings, device.CMSettings(d.Settings, tos))
	return settings
}
