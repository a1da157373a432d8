package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Names of the RDMA connection manager's settings for a port in the result of [Core.Settings]. The
// settings apply to connections that do not choose values themselves. The connection manager drops
// the settings when the device moves to another network namespace (cma_remove_one).
const (
	CMTypeOfService = "RDMA-CM type of service"
	CMMode          = "RDMA-CM RoCE mode"
)

// cmFiles are the files of these settings below rdma_cm/DEVICE/ports/N in configfs.
var cmFiles = map[string]string{CMTypeOfService: "default_roce_tos", CMMode: "default_roce_mode"}

// cmSetting returns the setting of a port that has this name.
func cmSetting(port uint32, name string) setting {
	file := filepath.Join("ports", strconv.FormatUint(uint64(port), 10), cmFiles[name])
	return setting{
		name: portSetting(port, name),
		read: func(_ *Core, d Device) (value string, err error) {
			err = inConfigfs(d, func(dir string) error {
				text, err := os.ReadFile(filepath.Join(dir, file))
				value = strings.TrimSpace(string(text))
				return err
			})
			return value, err
		},
		set: func(_ *Core, d Device, value string) error {
			return inConfigfs(d, func(dir string) error {
				f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.WriteString(value)
				return errors.Join(err, f.Close())
			})
		},
	}
}

// inConfigfs calls f with the device's directory in configfs. If the directory does not exist,
// inConfigfs makes it and removes it afterwards. The kernel finds the device by the name of the
// directory, in any network namespace (cma_configfs_params_get).
func inConfigfs(d Device, f func(dir string) error) error {
	if !isElement(d.Name) {
		return fmt.Errorf("RDMA device name %q: %w", d.Name, nlattr.ErrMalformed)
	}
	root, err := configfs()
	if err != nil {
		return err
	}
	dir := filepath.Join("/proc/self/fd", strconv.Itoa(root), "rdma_cm", d.Name)
	for range configfsTries {
		err = os.Mkdir(dir, 0o755)
		if err == nil {
			return errors.Join(f(dir), os.Remove(dir))
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// An administrator has made the directory, or another process is about to remove it.
		if err = f(dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

const configfsTries = 5

// mounted is a mount of configfs. It is 0 until configfs has made the mount. The mount stays as
// long as the process, because each setting is read through it, and the end of a mount costs the
// kernel a grace period (namespace_unlock).
var mounted struct {
	sync.Mutex
	root int
}

// configfs returns the descriptor of the root of configfs.
func configfs() (int, error) {
	mounted.Lock()
	defer mounted.Unlock()
	if mounted.root == 0 {
		root, err := netns.MountConfigfs()
		if err != nil {
			return 0, err
		}
		mounted.root = root
	}
	return mounted.root, nil
}

// CMSettings returns the part of settings that the connection manager drops when the device moves.
// settings is a result of [Core.Settings]. If tos is not nil, it replaces the type of service of
// every port.
func (d Device) CMSettings(settings map[string]string, tos *int) map[string]string {
	found := map[string]string{}
	for port := uint32(1); port <= min(d.Ports, maxPorts); port++ {
		for name := range cmFiles {
			if value, ok := settings[portSetting(port, name)]; ok {
				found[portSetting(port, name)] = value
			}
		}
		if tos != nil {
			found[portSetting(port, CMTypeOfService)] = strconv.Itoa(*tos)
		}
	}
	return found
}
