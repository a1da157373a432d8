package device

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// deviceFiles are the settings of an interface below /sys/class/net/NAME that survive a move, with
// their defaults. A snapshot leaves out a setting that has its default. The settings of rtnetlink
// (mtu, flags, …) are not included.
var deviceFiles = map[string]string{
	"gro_flush_timeout":    "0",
	"napi_defer_hard_irqs": "0",
	"threaded":             "0",
}

// queueFiles are the settings of each queue, by the prefix of the queue's name. XPS has no default,
// because most drivers set it.
var queueFiles = map[string]map[string]string{
	"rx-": {"rps_cpus": "0", "rps_flow_cnt": "0"},
	"tx-": {
		"xps_cpus": "0", "xps_rxqs": "0", "tx_maxrate": "0",
		"byte_queue_limits/limit_max": "1879048192", "byte_queue_limits/limit_min": "0",
		"byte_queue_limits/hold_time": "1000", "byte_queue_limits/stall_thrs": "0",
	},
}

// maxQueues bounds how many queues of a NIC are read.
const maxQueues = 1024

// readFiles returns the readable settings below an interface's directory in
// sysfs.
func readFiles(dir int) (map[string]string, error) {
	found := map[string]string{}
	take := func(file string) {
		// With a single queue there is no XPS: the files exist, but cannot be read.
		if v, err := netns.ReadSetting(dir, file); err == nil {
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

// trimMask shortens a CPU mask ("00000000,00000010" → "10"). The kernel accepts both forms.
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

// resetNAPI are files that are written even if they have the right value. A write sets all NAPI
// instances of the interface, including those that do not exist while the interface is down
// (netdev_set_gro_flush_timeout).
var resetNAPI = []string{"gro_flush_timeout", "napi_defer_hard_irqs"}

// adjustFiles sets the files that differ from the snapshot, or from their default if the snapshot
// does not have them. It returns the names of these files.
func (d *handle) adjustFiles(want map[string]string) (differed map[string]error, err error) {
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
		err := netns.WriteSetting(d.dir, file, value)
		if have[file] != value {
			differed["sysfs "+file] = err
		}
	}
	return differed, err
}
