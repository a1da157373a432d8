package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Sysfs returns the descriptor of a mount of the namespace's sysfs ([MountSysfs]). The first call
// makes the mount, and Close ends it. There is only one mount because the end of each mount costs
// the kernel a grace period (namespace_unlock).
func (n *Netns) Sysfs() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sys != 0 {
		return n.sys, nil
	}
	err := n.Do(func() error {
		root, err := MountSysfs(0)
		if err != nil {
			return failure.From(err, failure.IO, "mount the sysfs of netns %s", n.Path).Cure("run the program with CAP_SYS_ADMIN on Linux 5.2 or newer")
		}
		n.sys = root
		return nil
	})
	return n.sys, err
}

// IsElement reports whether s is one element of a path, and neither "." nor "..".
func IsElement(s string) bool { return s != "" && s != "." && s != ".." && !strings.Contains(s, "/") }

// ReadSetting returns the value in a file of sysfs or /proc/sys. The value may have at most 512 bytes. ReadSetting makes three system
// calls, and os.ReadFile makes eight: a snapshot reads some 130 settings. The path is relative to the directory dirfd. With an absolute
// path the kernel would resolve all of /proc/sys for each setting, which is a third of the cost.
func ReadSetting(dirfd int, path string) (string, error) {
	fd, err := unix.Openat(dirfd, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [512]byte // the longest value is an IPv6 address
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// MountSysfs mounts the sysfs of the calling thread's network namespace without a path (fsopen,
// fsmount; Linux 5.2). Other processes cannot see the mount, the mount ends when the returned
// descriptor is closed, and it does not keep the namespace alive. attributes are MOUNT_ATTR_*.
//
// /sys would be wrong for a pod: its contents depend on the namespace in which /sys was mounted,
// not on the namespace of the thread that reads.
func MountSysfs(attributes int) (int, error) { return mount("sysfs", attributes) }

// MountConfigfs returns the descriptor of the root of configfs. The kernel has only one instance of
// configfs. No path leads to the mount.
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

// WriteSetting writes a value to a file of sysfs below the directory dir, in one write(2). It never creates the file. A missing file
// is not an error.
func WriteSetting(dir int, file, value string) error {
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the setting of a queue that no longer exists
	}
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(value))
	return errors.Join(err, unix.Close(fd))
}
