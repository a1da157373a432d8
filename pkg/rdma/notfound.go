package rdma

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// hasLeft returns the error for a call about a device that has left the namespace, or never was in
// it. cause is the kernel's answer.
func hasLeft(what, path string, cause error) error {
	return failure.Because(fmt.Errorf("%w %s in netns %s", ErrNotFound, what, path), cause)
}

// mayBeGone reports whether err can mean that a device has left. Such an error proves nothing: the
// kernel also answers EINVAL if a driver lacks something.
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

// ifGone returns err, the error of a read or a change of d. If the call failed because the
// namespace does not have the device, the returned error also wraps [ErrNotFound].
func (c *Core) ifGone(err error, d Device) error {
	if !mayBeGone(err) || errors.Is(err, ErrNotFound) {
		return err
	}
	if now, readErr := c.device(d.Index); !errors.Is(readErr, ErrNotFound) && (readErr != nil || now.Is(d)) {
		return err
	}
	return hasLeft(d.Name, c.ns.Path, err)
}

// readTries bounds how often a device is read again that was in no namespace for a moment. Such a
// device left after the read and came back before the check whether it is there.
const readTries = 3

// steady calls read, which reads from d. It calls read again if read fails although the device is
// there. The error wraps [ErrNotFound] if the device has left.
func (c *Core) steady(d Device, read func() error) (err error) {
	for range readTries {
		if err = c.ifGone(read(), d); !mayBeGone(err) || errors.Is(err, ErrNotFound) {
			break
		}
	}
	return err
}
