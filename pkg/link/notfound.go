package link

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// hasLeft returns the error for a call about a link that has left the namespace, or never was in
// it. cause is the kernel's answer.
func hasLeft(what, path string, cause error) error {
	return failure.Because(fmt.Errorf("%w %s in netns %s", ErrNotFound, what, path), cause)
}

// mayBeGone reports whether err can mean that a link has left. Such an error proves nothing. A
// driver that resets its NIC answers ENODEV although the link is there (netif_device_present), and
// a link may lack a file.
func mayBeGone(err error) bool {
	for _, answer := range []error{
		unix.ENODEV,      // rtnetlink, ethtool and bpf, and a file in sysfs that is being removed (kernfs_get_active)
		unix.ENXIO,       // a packet socket (packet_snd)
		unix.EINVAL,      // a file in sysfs of a link that is being removed (netdev_show)
		unix.ENETUNREACH, // a route whose gateway is reached through the link (fib_check_nh)
		fs.ErrNotExist,   // files in sysfs and /proc/sys
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// IfGone returns err, the error of a call about the link with this index. If the call failed
// because the namespace does not have the link, the returned error also wraps [ErrNotFound].
func IfGone(n *netns.Netns, err error, index int) error {
	if !mayBeGone(err) || errors.Is(err, ErrNotFound) || !lacks(n, askLink(0, index)) {
		return err
	}
	return hasLeft(withIndex(index), n.Path, err)
}

// IfNameGone is like [IfGone], for the link with this name.
func IfNameGone(n *netns.Netns, err error, name string) error {
	if !mayBeGone(err) || errors.Is(err, ErrNotFound) || NameStillThere(n, name) == nil {
		return err
	}
	return hasLeft(fmt.Sprintf("%q", name), n.Path, err)
}

// LeftError returns the error for a call about the link with this index, if n does not have that
// link.
func LeftError(n *netns.Netns, index int) error {
	return hasLeft(withIndex(index), n.Path, unix.ENODEV)
}

// StillThere returns an error that wraps [ErrNotFound] if the namespace does not have the link with
// this index. Call it after an empty list: a list about a link that has left is empty.
func StillThere(n *netns.Netns, index int) error {
	if lacks(n, askLink(0, index)) {
		return LeftError(n, index)
	}
	return nil
}

// NameStillThere is like [StillThere], for the link with this name.
func NameStillThere(n *netns.Netns, name string) error {
	if _, err := ByName(n, name); errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// lacks reports whether the kernel's answer to ask is that the namespace does not have the link.
func lacks(n *netns.Netns, ask *nl.NetlinkRequest) bool {
	_, err := readLink(n, ask)
	return errors.Is(err, unix.ENODEV)
}

func withIndex(index int) string { return fmt.Sprintf("with index %d", index) }
