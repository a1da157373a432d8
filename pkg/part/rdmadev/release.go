package rdmadev

import (
	"context"
	"errors"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Release returns the lent RDMA devices of a record from the pod netns. If the pod netns is gone
// and the host netns is not init_net, Release returns them from init_net.
func (devices) Release(ctx context.Context, releasing *attachment.Releasing) error {
	var errs []error
	for _, d := range releasing.Record.RDMA.Devices {
		if !d.Lent {
			continue
		}
		err := releaseDevice(ctx, releasing, d)
		if err == nil && len(d.Settings) > 0 {
			restoreSettings(ctx, releasing, d)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restoreSettings restores the settings of a returned device, and reports the settings that cannot
// be restored.
func restoreSettings(ctx context.Context, releasing *attachment.Releasing, d ledger.RDMADevice) {
	n, r, home := releasing.Node, releasing.Record, releasing.Home
	core, err := rdma.Open(home)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return // its driver was unloaded, which resets the settings
	}
	var device *rdma.Device
	if err == nil {
		defer core.Close()
		device, err = findDevice(core, d)
	}
	switch {
	case err != nil:
		n.ReportReturned(r, nil, []link.Changed{{Setting: "RDMA device " + d.Name, Err: err}}, nil)
	case device != nil:
		ctx, cancel := releasing.Served(ctx, serveWait)
		defer cancel()
		left := core.Restore(ctx, *device, d.Settings)
		for i := range left {
			left[i].Setting = "RDMA device " + d.Name + ": " + left[i].Setting
		}
		n.ReportReturned(r, nil, left, nil)
	}
}

// releaseDevice returns one RDMA device to the host, or waits until the kernel has returned it.
func releaseDevice(ctx context.Context, releasing *attachment.Releasing, d ledger.RDMADevice) (err error) {
	n, home, host := releasing.Node, releasing.Home, releasing.Node.Host()
	if releasing.Pod != nil {
		if releasing.Record.MadeAnew() {
			releasing.Leaving(ctx) // the interface ends with the move
			defer func() {
				if err == nil {
					releasing.Silent()
				}
			}()
		}
		moved, err := ReturnDevice(ctx, n, d, releasing.Pod, home)
		if moved || err != nil {
			return err
		}
	}
	core, err := rdma.Open(home)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return nil // its driver was unloaded, so the device is gone
	}
	if err != nil {
		return err
	}
	defer core.Close()
	came, err := releasing.Await(ctx, func() int { return devicesAway(n, core) + n.NICsMoving() }, func() (done bool, err error) {
		device, err := findDevice(core, d)
		if device != nil || err != nil {
			return true, errors.Join(err, RestoreName(ctx, n, core, home, device, d.Name))
		}
		if moved, err := moveFromInit(ctx, n, d, home); moved || err != nil {
			return true, err
		}
		return !host.Bound(d.ParentDev) || !host.HasRDMADevice(d.ParentDev), nil // it was unplugged, or its driver was unloaded
	})
	if came {
		return err
	}
	if ctx.Err() != nil {
		return failure.Wrap(ctx.Err(), failure.NotReturned, "the wait for the RDMA device %s was too short", d.Name)
	}
	if releasing.Conclusive() && deviceGone(releasing, core, d) {
		n.Log.Warn("RDMA device no longer exists, because its driver made another one", "device", d.Name, "parentDev", d.ParentDev)
		return nil
	}
	return failure.New(failure.NotReturned, "the RDMA device %s (%s) is neither on the host nor in its pod netns", d.Name, d.ParentDev).
		Cure("find the device with `ip -all netns exec rdma dev`; a sweep or `railctl gc` tries again. If the device no longer exists, a DEL or rail-agent ends the attachment")
}

// devicesAway returns the number of RDMA devices that were lent to dead pods and are not on the
// host.
func devicesAway(n *attachment.Node, core *rdma.Core) (missing int) {
	stale, _ := n.Stale() // an unreadable record is not counted
	for _, r := range stale {
		if r.RDMA == nil || !n.Ledger.Holds(r) {
			continue
		}
		for _, d := range r.RDMA.Devices {
			if device, err := findDevice(core, d); d.Lent && device == nil && err == nil {
				missing++
			}
		}
	}
	return missing
}

// moveFromInit moves the device from init_net, where the kernel moved it, to home, which is another
// netns. It returns false if the device is not in init_net.
func moveFromInit(ctx context.Context, n *attachment.Node, d ledger.RDMADevice, home *netns.Netns) (bool, error) {
	first, err := netns.Open(netns.InitPath)
	if err != nil {
		return false, nil // a container may not be permitted to open init_net
	}
	defer first.Close()
	if first.ID.Equal(home.ID) {
		return false, nil
	}
	return ReturnDevice(ctx, n, d, first, home)
}

// deviceGone reports whether the lent RDMA device no longer exists, because its function has
// another device now. Call deviceGone only after a long search for the device.
func deviceGone(releasing *attachment.Releasing, core *rdma.Core, d ledger.RDMADevice) bool {
	n, r := releasing.Node, releasing.Record
	if !n.Host().HasOneNIC(d.ParentDev) {
		return false
	}
	others, err := core.ByParent(d.ParentDev)
	return err == nil && len(others) > 0 || n.AnotherHas(r, func(other *ledger.Record) bool {
		return other.RDMA != nil && slices.ContainsFunc(other.RDMA.Devices, func(o ledger.RDMADevice) bool {
			return o.Lent && o.ParentDev == d.ParentDev && o.NodeGUID != d.NodeGUID
		})
	})
}

// ReturnDevice moves the device from the netns from to home, and restores its name there. It does
// nothing if the device is not in from. It reports whether the device is on the host now. In shared
// mode nothing moves, because every namespace has the device.
func ReturnDevice(ctx context.Context, n *attachment.Node, d ledger.RDMADevice, from, home *netns.Netns) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveWait)
	defer cancel()
	moved := false
	err := withCores(ctx, n, from, home, func(source, target *rdma.Core) error {
		device, err := findDevice(source, d)
		if err != nil || device == nil {
			return err
		}
		arrived, err := source.Move(ctx, *device, target)
		if errors.Is(err, rdma.ErrShared) {
			moved = true
			return RestoreName(ctx, n, target, home, device, d.Name)
		}
		var changed *rdma.UverbsChanged
		if errors.As(err, &changed) {
			n.Log.Warn("RDMA device has returned with another uverbs number", "device", d.Name, "err", err)
			err = nil
		}
		if err != nil {
			return failure.From(err, failure.NotReturned, "RDMA device %s", d.Name).Cure("%s", cureOfMove(err))
		}
		moved = true
		return RestoreName(ctx, n, target, home, &arrived.Device, d.Name)
	})
	if errors.Is(err, rdma.ErrNoRDMA) {
		return false, nil
	}
	return moved, err
}
