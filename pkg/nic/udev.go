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

// udevWait bounds the wait for udev to name a NIC. udev usually needs milliseconds. It needs a few
// seconds on a node that boots, or on which many virtual functions are made at once.
const udevWait = 10 * time.Second

// AwaitUdev waits until udev has named l, and reports whether it had to wait. If it had to, l may
// have another name now, or may be gone. AwaitUdev does not wait if udev does not run, if udev is
// done with l, or if l already has a name from user space.
//
// If a pod got a NIC before udev has named the NIC, the NIC would return under the kernel's name
// and would keep that name, because udev does not change a name that was set from user space
// (NamePolicy=keep).
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

// isNamed reports whether l has a name from user space, or udev is done with l and has kept the
// kernel's name.
func (h *Host) isNamed(l *link.Link) bool {
	// 3 and 4 are NET_NAME_USER and NET_NAME_RENAMED of include/uapi/linux/netdevice.h. A NIC that
	// a pod had was renamed, so an ADD never waits for udev after a DEL.
	kind, _ := os.ReadFile(filepath.Join(h.Sys, "class/net", l.Name, "name_assign_type")) // if it cannot be read, it is NET_NAME_UNKNOWN
	if k := strings.TrimSpace(string(kind)); k == "3" || k == "4" {
		return true
	}
	// udev writes this file when it is done with the NIC. After a rename it writes the file once
	// more, without ID_RENAMING.
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
	return err == nil || errors.Is(err, unix.EAGAIN) // EAGAIN means that too many processes are already waiting for udev
}
