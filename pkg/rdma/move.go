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
	// ErrShared is wrapped by [Core.Move] if RDMA is in shared mode, in which devices cannot be
	// moved.
	ErrShared = errors.New("RDMA is in shared mode, where devices cannot be moved to a network namespace")
	// ErrImmovable is wrapped by [Core.Move] if the device's driver cannot take the device away
	// from processes that use it (the driver has no disassociate_ucontext). The kernel requires
	// that for a move.
	ErrImmovable = errors.New("its driver does not support moving it to a network namespace")
)

// UverbsChanged is returned by [Core.Move] if the device has moved, but has another uverbs number
// afterwards: another device of the node was moved at the same time, without the lock. The device
// plugin promises a pod /dev/infiniband/uverbs<Before> before ADD. With that path the pod would
// open another pod's device.
type UverbsChanged struct {
	Device string // the moved device
	Before int    // its number before
	After  int    // its current number
	Holder string // the device that has the number Before now, "" if no device has it
}

func (e *UverbsChanged) Error() string {
	// In future kernels two devices can have the same name, each in its own namespace.
	holder := "no device"
	if e.Holder != "" {
		holder = fmt.Sprintf("a device named %s in its own netns", e.Holder)
	}
	return fmt.Sprintf("RDMA device %s was uverbs%d before the move and is uverbs%d now, and %s has uverbs%d now: two devices of this node were moved at the same time, by something that does not take rail-cni's lock",
		e.Device, e.Before, e.After, holder, e.Before)
}

// Moved is the state of the device after [Core.Move].
type Moved struct {
	Device Device
	// Before is the name of the device immediately before the move: udev may have renamed the
	// device since it was found. It is "" if the device was already in the target.
	Before string
	Uverbs CharDev // empty if ib_uverbs is not loaded
}

// Move moves the device d from the namespace of c to the namespace of to (RDMA_NLDEV_CMD_SET with
// NET_NS_FD, rdma_dev_change_netns). It returns when the device is visible in the target and no
// longer here, and has its uverbs device again. It also returns when ctx ends: in that case the
// device may still arrive later. If the device is in neither namespace, another process is moving
// it, and Move waits for the device until ctx ends. If the device is already in the target, it
// stays there, and Move returns no error.
//
// The kernel ends all uses of the device, and gives its char devices new numbers, which are the
// lowest free ones. If only one device moves at a time, the numbers stay the same, so the caller
// must hold one lock for the whole node until Move has returned. After an error of type
// [UverbsChanged] the device is in the target, and Moved is valid. Other errors wrap [ErrShared],
// [ErrImmovable], [ErrNotFound] or the kernel's errno. After such an error the device is where it
// was, unless the error's text says that it was moved.
func (c *Core) Move(ctx context.Context, d Device, to *Core) (Moved, error) {
	held, err := c.locate(ctx, d, to)
	if err != nil {
		return Moved{}, err
	}
	if !held {
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
	// The current holder of the old number helps the reader. An error is ignored.
	changed.Holder, _ = c.ownerOfUverbs(changed.Before)
	return m, changed
}

// uverbsGrace is how long a device may lack its uverbs device before Move treats it as a device
// without one. It is longer than a move takes on a busy machine.
const uverbsGrace = time.Second

// awaitUverbs returns the uverbs device of d. If d has none, awaitUverbs waits a short time,
// because another process may just have moved d here. The result is empty if ib_uverbs is not
// loaded, or makes no uverbs device for such an RDMA device.
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

// locate waits until d is in the namespace of c or of to. It reports whether d is in the namespace
// of c.
func (c *Core) locate(ctx context.Context, d Device, to *Core) (held bool, err error) {
	err = await(ctx, func() (bool, error) {
		var moved bool
		if held, err = c.holds(d); held || err != nil {
			return true, err
		}
		moved, err = to.holds(d)
		return moved, err
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return false, failure.From(fmt.Errorf("%w: %w", ErrNotFound, err), failure.Kernel, "move RDMA device %s: the device is neither in netns %s nor in netns %s",
			d.Name, c.ns.Path, to.ns.Path).
			Cure("find the device with 'rdma dev' in the network namespaces of this node")
	}
	return held, err
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

// send sends the request. It returns the name that the device had immediately before. The kernel
// moves the device before it answers. The calling thread must be in the device's namespace
// (current->nsproxy->net_ns): a socket of that namespace is not enough.
func (c *Core) send(d Device, to *Core) (name string, err error) {
	err = c.inNetns(func() error {
		if now, err := c.device(d.Index); err == nil { // otherwise the request fails as well
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

// moveError returns the error for an errno of the move, with the cause and the cure.
func moveError(err error, mode Mode, d Device, from, to string) error {
	cure := ""
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && mode == Shared:
		err, cure = fmt.Errorf("%w: %w", ErrShared, err), AtBoot(Exclusive)
	case errors.Is(err, unix.EOPNOTSUPP):
		err, cure = fmt.Errorf("%w: %w", ErrImmovable, err), "use the device in shared mode, or use a NIC whose driver supports the move (mlx5; in newer kernels also irdma, bnxt_re, hns)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		err, cure = fmt.Errorf("the device left netns %s meanwhile: %w: %w", from, ErrNotFound, err), "try again, because another program moves or removes the device"
	case errors.Is(err, unix.EBUSY):
		cure = "try again, because the device is being set up or removed"
	case errors.Is(err, unix.EPERM):
		cure = needsAdmin
	}
	return failure.From(err, failure.Kernel, "move RDMA device %s from netns %s to netns %s", d.Name, from, to).Cure("%s", cure)
}

// arrive waits until the device is in to and not here. If the device had a uverbs device before,
// arrive also waits for that.
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
			Cure("see the kernel log: the driver may have failed to start the device again")
	}
	return m, err
}

// arrived reads both namespaces once. missing describes what is still missing, or is "".
func (c *Core) arrived(d Device, to *Core, before CharDev) (m Moved, missing string, err error) {
	err = to.inNetns(func() (err error) { m.Device, err = to.device(d.Index); return err })
	m.Device.ParentDev, m.Device.ParentBus = d.ParentDev, d.ParentBus // the same in every namespace
	if errors.Is(err, ErrNotFound) || err == nil && !m.Device.Is(d) {
		return Moved{}, "the device is not there", nil
	}
	if err != nil {
		return Moved{}, "the device cannot be read there", err
	}
	if !c.sameNetns(to) {
		if held, err := c.holds(d); held || err != nil {
			return m, "the device is still in the first one", err
		}
	}
	m.Uverbs, err = to.Uverbs(m.Device)
	switch {
	case err == nil:
		return m, "", nil
	case errors.Is(err, ErrNoCharDev) && before.Name == "":
		return m, "", nil
	case errors.Is(err, ErrNoCharDev), errors.Is(err, ErrNotFound):
		return m, "its uverbs device does not exist", nil
	}
	return m, "its uverbs device cannot be read", err
}
