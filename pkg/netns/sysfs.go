package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Sysfs returns the descriptor of a mount of the namespace's sysfs ([MountSysfs]), which is
// made by the first call, and ends with Close: the end of each mount costs the kernel a
// grace period (namespace_unlock).
func (n *Netns) Sysfs() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sys != 0 {
		return n.sys, nil
	}
	err := n.Do(func() error {
		root, err := MountSysfs(0)
		if err != nil {
			return failure.From(err, failure.IO, "mount the sysfs of netns %s", n.Path).Cure("it needs CAP_SYS_ADMIN and Linux 5.2")
		}
		n.sys = root
		return nil
	})
	return n.sys, err
}

// IsElement reports whether s is one element of a path, and not "..".
func IsElement(s string) bool { return s != "" && s != "." && s != ".." && !strings.Contains(s, "/") }

// ReadSetting returns the value, of at most 512 bytes, in a file of sysfs or /proc/sys. It makes three system calls: os.ReadFile makes
// eight, and a snapshot reads some 130 settings. The path is relative to the
// directory at: otherwise the kernel would resolve all of /proc/sys for each,
// which is a third of the cost.
func ReadSetting(at int, path string) (string, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [512]byte // the longest is an IPv6 address
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// MountSysfs mounts the sysfs of the calling thread's network namespace without
// a path (fsopen, fsmount; Linux 5.2): the mount is invisible to others, it
// ends with the returned descriptor, and it does not keep the namespace alive.
// attributes are MOUNT_ATTR_*.
//
// /sys would be wrong for a pod: what it shows depends on the namespace in which
// it was mounted, not on the thread that reads.
func MountSysfs(attributes int) (int, error) { return mount("sysfs", attributes) }

// MountConfigfs returns the descriptor of the root of configfs, of which the kernel has
// one instance. No path leads to the mount.
func MountConfigfs() (int, error) { return mount("configfs", 0) }

func mount(kind string, attributes int) (int, error) {
	config, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, fmt.Errorf("create %s: %w", kind, err)
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return root, nil
}

// WriteSetting writes a value to a file of sysfs below the directory dir, in one write(2). It never creates the file, and a missing
// one is not an error.
func WriteSetting(dir int, file, value string) error {
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // of a queue that no longer exists
	}
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(value))
	return errors.Join(err, unix.Close(fd))
}
