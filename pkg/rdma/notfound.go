package rdma

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// hasLeft returns the error of a call about a device that has left the namespace, or never was in
// it. cause is the kernel's answer.
func hasLeft(what, path string, cause error) error {
	return failure.Because(fmt.Errorf("%w %s in netns %s", ErrNotFound, what, path), cause)
}

// mayBeGone reports whether err can mean that a device has left. It proves nothing: the
// kernel answers EINVAL for what a driver lacks, too.
func mayBeGone(err error) bool {
	for _, answer := range []error{
		unix.EINVAL,    // netlink (nldev)
		unix.ENODEV,    // netlink, and a file in sysfs that is being removed (kernfs_get_active)
		fs.ErrNotExist, // a path in sysfs
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// ifGone returns err, of a read or a change of d. It wraps [ErrNotFound] if the cause is
// that the namespace does not have the device.
func (c *Core) ifGone(err error, d Device) error {
	if !mayBeGone(err) || errors.Is(err, ErrNotFound) {
		return err
	}
	if now, there := c.device(d.Index); !errors.Is(there, ErrNotFound) && (there != nil || now.Is(d)) {
		return err
	}
	return hasLeft(d.Name, c.ns.Path, err)
}

// readTries bounds how often a device is read again that was in no namespace for a moment:
// it left and came back, between the read and the look for it.
const readTries = 3

// steady calls read, of d, again if it fails as for a device that has left, and the device is
// there. The error wraps [ErrNotFound] if it has left.
func (c *Core) steady(d Device, read func() error) (err error) {
	for range readTries {
		if err = c.ifGone(read(), d); !mayBeGone(err) || errors.Is(err, ErrNotFound) {
			break
		}
	}
	return err
}
