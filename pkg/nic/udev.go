package nic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// udevWait bounds the wait for udev to name a NIC. It takes milliseconds; on a node that
// boots, or has many virtual functions made at once, a few seconds.
const udevWait = 10 * time.Second

// AwaitUdev waits until udev has named l, and reports whether it waited: l may have another
// name then, or be gone. It does not wait if udev does not run, is done with l, or if l has
// a name from user space.
//
// A NIC that a pod gets before udev has named it would return under the kernel's name, and
// keep it: udev takes a name that user space has set for the one to keep (NamePolicy=keep).
func (h *Host) AwaitUdev(ctx context.Context, l *link.Link) (waited bool, err error) {
	if h.Udev == "" || h.isNamed(l) || !h.udevRuns() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, udevWait)
	defer cancel()
	err = wait.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		now, err := link.ByIndex(h.Netns, l.Index)
		if errors.Is(err, link.ErrNotFound) {
			return true, nil
		}
		return err == nil && h.isNamed(now), err
	})
	if wait.Ended(ctx, err) {
		err = failure.From(err, failure.TryAgain, "udev has not named the NIC %s (index %d), which its driver made a moment ago", l.Name, l.Index).
			Cure("see `journalctl -u systemd-udevd`; `udevadm trigger -c add /sys/class/net/%s` tells udev again", l.Name)
	}
	return true, err
}

// isNamed reports whether l has its name from user space, or udev has left it the
// kernel's.
func (h *Host) isNamed(l *link.Link) bool {
	// NET_NAME_USER and NET_NAME_RENAMED of include/uapi/linux/netdevice.h. A NIC that
	// a pod had has been renamed, so an ADD never waits for udev after a DEL.
	kind, _ := os.ReadFile(filepath.Join(h.Sys, "class/net", l.Name, "name_assign_type")) // unreadable is NET_NAME_UNKNOWN
	if k := strings.TrimSpace(string(kind)); k == "3" || k == "4" {
		return true
	}
	// udev writes this file when it is done with the NIC, and without ID_RENAMING after
	// the rename.
	entry, err := os.ReadFile(filepath.Join(h.Udev, "data", fmt.Sprintf("n%d", l.Index)))
	return err == nil && !strings.Contains(string(entry), "E:ID_RENAMING=1\n")
}

// udevRuns reports whether udev, or systemd in its place, listens on udev's socket.
func (h *Host) udevRuns() bool {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(s)
	err = unix.Connect(s, &unix.SockaddrUnix{Name: filepath.Join(h.Udev, "control")})
	return err == nil || errors.Is(err, unix.EAGAIN) // EAGAIN: too many wait for it already
}
