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
// process in the pod can take the device away at once. The node's lock is held during the wait, so
// the wait must be short.
const recreatedWait = 5 * time.Second

// HasLent reports whether RDMA devices have moved into the pod, by the record.
func HasLent(r *ledger.Record) bool { return len(lentOf(r)) > 0 }

// OnHost returns a function that reports whether an RDMA device of the record r is on the host
// although the record lends it to a pod. OnHost does not enter the netns of any pod, because a
// socket there would delay the end of a dying pod's netns, and thereby the return of its NICs.
func OnHost(n *attachment.Node) (func(r *ledger.Record) bool, error) {
	var devices []rdma.Device
	core, err := rdma.Open(n.Netns)
	if err == nil {
		defer core.Close()
		devices, err = core.Devices()
	}
	if err != nil && !errors.Is(err, rdma.ErrNoRDMA) { // if there is no RDMA core, the pods lack their devices too
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

// lentOf returns the RDMA devices that, by the record, have moved into the pod.
func lentOf(r *ledger.Record) []ledger.RDMADevice {
	if r.RDMA == nil || r.Phase != ledger.Lent {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.RDMA.Devices), func(d ledger.RDMADevice) bool { return !d.Lent })
}

// Missing returns the RDMA devices of the attachment that are not in its living pod. A device
// leaves its pod if its driver resets (health recovery, devlink reload): the driver re-creates the
// device, and the kernel puts the new device into the network namespace that the device had first
// (_ib_alloc_device).
func Missing(n *attachment.Node, r *ledger.Record) ([]ledger.RDMADevice, error) {
	lent := lentOf(r)
	// The path must lead to the netns of the pod. On a kernel without cookies, the netns of another
	// pod may have got the inode number that the netns of a dead pod had.
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

// MoveRecreated moves the missing devices of the attachment from the host into its pod again, and
// restores their names and settings. moved reports whether it moved a device. There may be nothing
// to move, because an ADD or DEL was faster. The error wraps [statefile.ErrBusy] if an ADD or DEL
// of the attachment is running, and [rdma.ErrNotFound] if a device is not on the host either.
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
	err = withCores(locking, n, n.Netns, pod, func(host, podCore *rdma.Core) error {
		var errs []error
		for _, d := range missing {
			err := moveRecreated(ctx, n, host, podCore, d, r.RDMA.RoCETOS)
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
	if errors.As(err, &changed) { // the device has moved in spite of this error
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

// inPod returns the settings that the device is to have in the pod: the settings that it had on the
// host, and the type of service of the pod's network.
func inPod(device rdma.Device, d ledger.RDMADevice, tos *int) map[string]string {
	settings := map[string]string{}
	maps.Copy(settings, d.Settings)
	maps.Copy(settings, device.CMSettings(d.Settings, tos))
	return settings
}
