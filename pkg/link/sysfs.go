package link

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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

// deviceFiles are the settings of an interface below /sys/class/net/NAME that
// survive a move, and their defaults, which a snapshot leaves out. Settings of
// rtnetlink (mtu, flags, …) are not included.
var deviceFiles = map[string]string{
	"gro_flush_timeout":    "0",
	"napi_defer_hard_irqs": "0",
	"threaded":             "0",
}

// queueFiles are those of each queue, by the prefix of the queue's name. XPS has no
// default: most drivers set it.
var queueFiles = map[string]map[string]string{
	"rx-": {"rps_cpus": "0", "rps_flow_cnt": "0"},
	"tx-": {
		"xps_cpus": "0", "xps_rxqs": "0", "tx_maxrate": "0",
		"byte_queue_limits/limit_max": "1879048192", "byte_queue_limits/limit_min": "0",
		"byte_queue_limits/hold_time": "1000", "byte_queue_limits/stall_thrs": "0",
	},
}

// maxQueues bounds the queues of a NIC that are read.
const maxQueues = 1024

// readFiles returns the readable settings below an interface's directory in
// sysfs.
func readFiles(dir int) (map[string]string, error) {
	found := map[string]string{}
	take := func(file string) {
		// A single queue has no XPS: its files exist, but cannot be read.
		if v, err := readSysctl(dir, file); err == nil {
			found[file] = trimMask(v)
		}
	}
	for file := range deviceFiles {
		take(file)
	}
	queues, err := namesIn(dir, "queues")
	if err != nil {
		return nil, err
	}
	for _, queue := range queues[:min(len(queues), maxQueues)] {
		for file := range queueFiles[queue[:min(len("rx-"), len(queue))]] {
			take(path.Join("queues", queue, file))
		}
	}
	return found, nil
}

func namesIn(dir int, name string) ([]string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// openSysfs opens the sysfs directory of the link with this index. The caller closes it. The link may be renamed
// meanwhile.
func (n *Netns) openSysfs(index int) (dir int, err error) {
	root, err := n.Sysfs()
	if err != nil {
		return -1, err
	}
	const tries = 5
	for range tries {
		var l *Link
		if l, err = n.ByIndex(index); err != nil {
			return -1, err
		}
		dir, err = unix.Openat(root, path.Join("class/net", l.Name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if v, readErr := readSysctl(dir, "ifindex"); readErr == nil && v == strconv.Itoa(index) {
			return dir, nil
		}
		_ = unix.Close(dir)
		err = ErrNotFound
	}
	return -1, fmt.Errorf("the link with index %d in the sysfs of netns %s: %w", index, n.Path, err)
}

// trimMask shortens a CPU mask ("00000000,00000010" → "10"). The kernel accepts
// both.
func trimMask(v string) string {
	if short := strings.TrimLeft(v, "0,"); short != "" {
		return short
	}
	if v == "" {
		return ""
	}
	return "0"
}

func unsetValue(file string) (value string, known bool) {
	if v, ok := deviceFiles[file]; ok {
		return v, true
	}
	parts := strings.SplitN(file, "/", 3) // queues/rx-0/rps_cpus
	if len(parts) != 3 || len(parts[1]) < len("rx-") {
		return "", false
	}
	v, ok := queueFiles[parts[1][:len("rx-")]][parts[2]]
	return v, ok
}

// setOnly returns the settings without those that have their default value.
func setOnly(files map[string]string) map[string]string {
	maps.DeleteFunc(files, func(file, value string) bool { v, _ := unsetValue(file); return v == value })
	return files
}

// resetNAPI are files that are written even if they have the right value: they set
// all NAPI instances of the interface, including those that do not exist while it
// is down (netdev_set_gro_flush_timeout).
var resetNAPI = []string{"gro_flush_timeout", "napi_defer_hard_irqs"}

// adjustFiles sets the files that differ from the snapshot, or from their
// default, and returns them.
func (d *device) adjustFiles(want map[string]string) (differed map[string]error, err error) {
	have, err := readFiles(d.dir)
	differed = map[string]error{}
	for _, file := range slices.Sorted(maps.Keys(have)) {
		value, ok := want[file]
		if !ok {
			value, _ = unsetValue(file)
		}
		if have[file] == value && !slices.Contains(resetNAPI, file) {
			continue
		}
		err := writeAt(d.dir, file, value)
		if have[file] != value {
			differed["sysfs "+file] = err
		}
	}
	return differed, err
}

// writeAt writes in one write(2), and never creates the file.
func writeAt(dir int, file, value string) error {
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the queue no longer exists
	}
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(value))
	return errors.Join(err, unix.Close(fd))
}
