package netns

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Listen calls notify whenever the kernel sends a message to a multicast group of a netlink family
// (unix.NETLINK_ROUTE, unix.RTNLGRP_LINK) in the namespace, until ctx ends. Listen does not read
// the messages, and the kernel drops messages that come too fast. So the caller must read the state
// itself. Listen also calls notify after the kernel has dropped messages. The caller may close the
// Netns meanwhile: the namespace exists at least until Listen returns. The error wraps
// EPROTONOSUPPORT if the kernel does not have the family.
func (n *Netns) Listen(ctx context.Context, family, group int, notify func()) error {
	var socket *os.File
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "netlink")
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)})
	})
	if socket != nil {
		defer socket.Close()
	}
	if err != nil {
		return failure.Wrap(err, failure.Kernel, "listen to netlink family %d, group %d, in netns %s", family, group, n.Path)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	for notice := make([]byte, 64); ; { // the kernel drops what does not fit
		_, err := socket.Read(notice)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return failure.Wrap(err, failure.Kernel, "listen to netlink family %d, group %d, in netns %s", family, group, n.Path)
		}
		notify()
	}
}
