package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// sys returns the root of the namespace's sysfs.
//
// /sys would be wrong for a pod: the contents of class/infiniband depend on the namespace in which
// the sysfs was mounted, not on the namespace of the thread that reads. So the Core mounts a sysfs,
// from a thread of the namespace ([netns.MountSysfs]).
func (c *Core) sys() (string, error) {
	if c.Sys != "" {
		return c.Sys, nil
	}
	view, err := c.ns.Sysfs()
	if err != nil {
		return c.hostSys(err)
	}
	return "/proc/self/fd/" + strconv.Itoa(view), nil
}

// hostSys is the fallback if a sysfs cannot be mounted. It returns /sys if the Core belongs to the
// host netns. mu is held and the thread is in the Core's namespace, so another thread looks up the
// host netns.
func (c *Core) hostSys(cause error) (string, error) {
	same := make(chan bool)
	go func() {
		host, err := netns.Current()
		if err != nil {
			same <- false
			return
		}
		defer host.Close()
		same <- host.ID.Equal(c.ns.ID)
	}()
	if <-same {
		return "/sys", nil
	}
	return "", cause
}

// readSys reads a file of one line. path is relative to the root of sysfs. A path may lead out of
// sysfs because a pod gave its device a name such as "../../x". For such a path readSys returns
// fs.ErrNotExist.
func (c *Core) readSys(path string) (string, error) {
	if !filepath.IsLocal(path) {
		return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	root, err := c.sys()
	if err != nil {
		return "", err
	}
	return readLine(filepath.Join(root, path))
}

func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// names returns the names of the namespace's devices in sysfs.
func (c *Core) names() (map[string]bool, error) {
	entries, err := c.list("class/infiniband")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e] = true
	}
	return names, nil
}

// list returns the names in a directory. It returns none if the directory does not exist, or is not
// below the root of sysfs (see readSys).
func (c *Core) list(path string) ([]string, error) {
	if !filepath.IsLocal(path) {
		return nil, nil
	}
	root, err := c.sys()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// isElement reports whether name may be used as one element of a path. The kernel's own names are
// valid, but names come to us through files and messages.
func isElement(name string) bool {
	return filepath.IsLocal(name) && name != "." && !strings.ContainsRune(name, filepath.Separator)
}

// children returns the names of the namespace's RDMA devices below a parent, and the bus of the
// parent. bus is empty if sysfs has no such parent on a bus of NICs.
func (c *Core) children(parent string) (bus string, names []string, err error) {
	if !isElement(parent) {
		return "", nil, nil
	}
	root, err := c.sys()
	if err != nil {
		return "", nil, err
	}
	for _, bus := range []string{"pci", "auxiliary"} {
		dir := filepath.Join("bus", bus, "devices", parent)
		if _, err := os.Stat(filepath.Join(root, dir)); err == nil {
			names, err := c.list(filepath.Join(dir, "infiniband"))
			return bus, names, err
		}
	}
	return "", nil, nil
}

// parent returns the name and bus of the RDMA device's parent. Both are empty for a virtual device.
// The error wraps fs.ErrNotExist if sysfs does not have the RDMA device.
func (c *Core) parent(name string) (dev, bus string, err error) {
	root, err := c.sys()
	if err != nil {
		return "", "", err
	}
	if !isElement(name) {
		return "", "", fmt.Errorf("RDMA device name %q: %w", name, nlattr.ErrMalformed)
	}
	return parentAt(filepath.Join(root, "class/infiniband", name))
}

// parentOf is like parent, but accepts a device with any name. The kernel also accepts names such
// as ".." and "a/b", which do not lead to a device in sysfs. For these, parentOf uses the uverbs
// device. Without a uverbs device the parent is unknown, and the results are empty.
func (c *Core) parentOf(d Device) (dev, bus string, err error) {
	if isElement(d.Name) {
		return c.parent(d.Name)
	}
	root, err := c.sys()
	if err != nil {
		return "", "", err
	}
	uverbs, err := c.chardev(d, "uverbs")
	if errors.Is(err, ErrNoCharDev) || errors.Is(err, ErrNotFound) {
		return "", "", nil
	}
	if err != nil || !isElement(uverbs.Name) {
		return "", "", err
	}
	dev, bus, err = parentAt(filepath.Join(root, "class/infiniband_verbs", uverbs.Name))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the device is being moved
	}
	return dev, bus, err
}

// parentAt returns the parent of the device that has this sysfs directory.
func parentAt(dir string) (dev, bus string, err error) {
	target, err := os.Readlink(filepath.Join(dir, "device"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Lstat(dir)
		return "", "", err
	}
	if err != nil {
		return "", "", err
	}
	subsystem, err := os.Readlink(filepath.Join(dir, "device", "subsystem"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	if subsystem != "" {
		bus = filepath.Base(subsystem)
	}
	return filepath.Base(target), bus, nil
}
