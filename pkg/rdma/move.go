package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

var (
	// ErrShared is wrapped by [Core.Move] in shared mode, in which devices
	// cannot be moved.
	ErrShared = errors.New("RDMA is in shared mode, where devices cannot be moved to a network namespace")
	// ErrImmovable is wrapped by [Core.Move] if the device's driver cannot take
	// it away from processes that use it (it has no disassociate_ucontext), which
	// the kernel requires for a move.
	ErrImmovable = errors.New("its driver does not support moving it to a network namespace")
)

// UverbsChanged is returned by [Core.Move] for a device that has moved, and has
// another uverbs number afterwards: another device of the node was moved at the
// same time, without the lock. A pod that was promised
// /dev/infiniband/uverbs<Before> (the device plugin promises it before ADD)
// would open another's device.
type UverbsChanged struct {
	Device string // the moved device
	Before int    // its number before
	After  int    // its current number
	Holder string // the device that has the number Before now, "" if none
}

func (e *UverbsChanged) Error() string {
	// In coming kernels two devices can have one name, each in its own namespace.
	holder := "no device"
	if e.Holder != "" {
		holder = fmt.Sprintf("a device named %s in its own netns", e.Holder)
	}
	return fmt.Sprintf("RDMA device %s was uverbs%d and is uverbs%d since it was moved; %s has uverbs%d now: two devices of this node were moved at the same time, by something that does not take rail-cni's lock",
		e.Device, e.Before, e.After, holder, e.Before)
}

// Moved is the state of the device after [Core.Move].
type Moved struct {
	Device Device
	// Before is the name of the device right before it was moved: udev may have renamed
	// it since it was found. It is "" if it was in the target already.
	Before string
	Uverbs CharDev // empty if ib_uverbs is not loaded
}

// Move moves the device d from the Core's namespace to that of to
// (RDMA_NLDEV_CMD_SET with NET_NS_FD, rdma_dev_change_netns). It returns when
// the device is visible in the target and no longer here, and has its uverbs
// device again, or when ctx ends: then the device may still arrive. Until ctx
// ends it waits for a device that is in neither namespace, because another
// process is moving it. A device that is in the target already stays there,
// without an error.
//
// The kernel ends all uses of the device, and assigns its char devices new
// numbers, the lowest free ones. One move at a time keeps them, so the caller
// holds one lock for the whole node until Move has returned. After an error of
// type [UverbsChanged] the device is in the target, and Moved is valid. Other
// errors wrap [ErrShared], [ErrImmovable], [ErrNotFound] or the kernel's errno;
// unless the text says that it has moved, the device is where it was.
func (c *Core) Move(ctx context.Context, d Device, to *Core) (Moved, error) {
	here, err := c.locate(ctx, d, to)
	if err != nil {
		return Moved{}, err
	}
	if !here {
		m, err := c.arrive(ctx, d, to, CharDev{})
		if err == nil && m.Uverbs.Name == "" {
			m.Uverbs, err = to.awaitUverbs(ctx, m.Device)
		}
		return m, err
	}
	before, err := c.awaitUverbs(ctx, d)
	if err != nil {
		return Moved{}, err
	}
	name, err := c.send(d, to)
	if err != nil {
		return Moved{}, err
	}
	m, err := c.arrive(ctx, d, to, before)
	m.Before = name
	if err != nil || before.Name == "" || before.number() == m.Uverbs.number() {
		return m, err
	}
	changed := &UverbsChanged{Device: d.Name, Before: before.number(), After: m.Uverbs.number()}
	// Its current holder helps the reader; an error here is ignored.
	changed.Holder, _ = c.ownerOfUverbs(changed.Before)
	return m, changed
}

// uverbsGrace is how long a device may be without its uverbs device before it
// counts as one without: longer than a move takes on a busy machine.
const uverbsGrace = time.Second

// awaitUverbs returns the uverbs device of d, after a short wait if it has
// none: d may just have arrived, moved by another process. It is empty if
// ib_uverbs is not loaded, or makes none for such a device.
func (c *Core) awaitUverbs(ctx context.Context, d Device) (CharDev, error) {
	ctx, cancel := context.WithTimeout(ctx, uverbsGrace)
	defer cancel()
	var found CharDev
	var last error
	err := await(ctx, func() (bool, error) {
		found, last = c.Uverbs(d)
		if !errors.Is(last, ErrNoCharDev) {
			return true, last
		}
		loaded, err := c.hasVerbs()
		return !loaded, err
	})
	if errors.Is(last, ErrNoCharDev) {
		return CharDev{}, nil
	}
	return found, err
}

// locate waits until d is here or in to, and reports whether it is here.
func (c *Core) locate(ctx context.Context, d Device, to *Core) (here bool, err error) {
	err = await(ctx, func() (bool, error) {
		var there bool
		if here, err = c.holds(d); here || err != nil {
			return true, err
		}
		there, err = to.holds(d)
		return there, err
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return false, failure.From(fmt.Errorf("%w: %w", ErrNotFound, err), failure.Kernel, "move RDMA device %s: it is neither in netns %s nor in netns %s",
			d.Name, c.ns.Path, to.ns.Path).
			Cure("find where it is with 'rdma dev' in the network namespaces of this node")
	}
	return here, err
}

// holds reports whether the namespace has the device now.
func (c *Core) holds(d Device) (bool, error) {
	var now Device
	err := c.inNetns(func() (err error) { now, err = c.device(d.Index); return err })
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && now.Is(d), err
}

// send sends the request, and returns the device's name right before. The kernel
// moves the device before it answers; the thread must be in the device's namespace
// (current->nsproxy->net_ns), a socket of that namespace is not enough.
func (c *Core) send(d Device, to *Core) (name string, err error) {
	err = c.inNetns(func() error {
		if now, err := c.device(d.Index); err == nil { // else the request fails, too
			name = now.Name
		}
		_, err := c.request(nl.RDMA_NLDEV_CMD_SET, 0, deviceAttr(d.Index), uint32Attr(nl.RDMA_NLDEV_NET_NS_FD, uint32(to.ns.FD())))
		if err == nil {
			return nil
		}
		mode, modeErr := c.mode()
		if modeErr != nil {
			mode = ""
		}
		return moveError(err, mode, d, c.ns.Path, to.ns.Path)
	})
	return name, err
}

// moveError returns the error for an errno of the move, with its cause and
// cure.
func moveError(err error, mode Mode, d Device, from, to string) error {
	cure := ""
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && mode == Shared:
		err, cure = fmt.Errorf("%w: %w", ErrShared, err), AtBoot(Exclusive)
	case errors.Is(err, unix.EOPNOTSUPP):
		err, cure = fmt.Errorf("%w: %w", ErrImmovable, err), "use it in shared mode, or use a NIC whose driver supports the move (mlx5; in newer kernels also irdma, bnxt_re, hns)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		err, cure = fmt.Errorf("it left netns %s meanwhile: %w: %w", from, ErrNotFound, err), "something else moves or removes it; try again"
	case errors.Is(err, unix.EBUSY):
		cure = "it is being set up or removed; try again"
	case errors.Is(err, unix.EPERM):
		cure = needsAdmin
	}
	return failure.From(err, failure.Kernel, "move RDMA device %s from netns %s to netns %s", d.Name, from, to).Cure("%s", cure)
}

// arrive waits until the device is in to and not here, and has a uverbs device
// if it had one before.
func (c *Core) arrive(ctx context.Context, d Device, to *Core, before CharDev) (Moved, error) {
	var m Moved
	missing := ""
	err := await(ctx, func() (bool, error) {
		var err error
		m, missing, err = c.arrived(d, to, before)
		return missing == "", err
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return m, failure.From(err, failure.TryAgain, "RDMA device %s was moved from netns %s to netns %s, but %s", d.Name, c.ns.Path, to.ns.Path, missing).
			Cure("see the kernel log: its driver may have failed to start it again")
	}
	return m, err
}

// arrived reads both namespaces once, and returns what is still missing.
func (c *Core) arrived(d Device, to *Core, before CharDev) (m Moved, missing string, err error) {
	err = to.inNetns(func() (err error) { m.Device, err = to.device(d.Index); return err })
	m.Device.ParentDev, m.Device.ParentBus = d.ParentDev, d.ParentBus // the same in every namespace
	if errors.Is(err, ErrNotFound) || err == nil && !m.Device.Is(d) {
		return Moved{}, "it is not there", nil
	}
	if err != nil {
		return Moved{}, "it cannot be read there", err
	}
	if !c.sameNetns(to) {
		if here, err := c.holds(d); here || err != nil {
			return m, "it is still where it was", err
		}
	}
	m.Uverbs, err = to.Uverbs(m.Device)
	switch {
	case err == nil:
		return m, "", nil
	case errors.Is(err, ErrNoCharDev) && before.Name == "":
		return m, "", nil
	case errors.Is(err, ErrNoCharDev), errors.Is(err, ErrNotFound):
		return m, "its uverbs device is not back", nil
	}
	return m, "its uverbs device cannot be read", err
}
