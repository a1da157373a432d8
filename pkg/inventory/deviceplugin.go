package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/resource"
)

// The kubelet's directories, in the node's root file system.
const (
	devicePlugins   = "/var/lib/kubelet/device-plugins"
	pluginsRegistry = "/var/lib/kubelet/plugins_registry"
	kubeletsDevices = devicePlugins + "/kubelet_internal_checkpoint"
	sharedPrefix    = "rdma/" // prefix of k8s-rdma-shared-dev-plugin's resources, unless its configuration sets another prefix
	maxCheckpoint   = 16 << 20
)

// sharedNames has parts of the names of resources in the examples of k8s-rdma-shared-dev-plugin and
// of NVIDIA's network-operator. The plugin names its socket after the resource, without the prefix.
var sharedNames = []string{"hca_shared", "rdma_shared", "rdma-shared"}

// SharedDevicePlugin returns the signs that k8s-rdma-shared-dev-plugin serves the node with this
// root file system. The signs are resources of the kubelet that have the plugin's usual prefix and
// that rail-agent does not serve, and sockets that have the plugin's usual names. Resources with
// another prefix and sockets with another name are not recognized.
func SharedDevicePlugin(root string) (found []string, err error) {
	resources, err := kubeletsResources(filepath.Join(root, kubeletsDevices))
	var names, usual []string // names of all sockets; paths of sockets with a usual name that are not rail-agent's
	for _, dir := range []string{pluginsRegistry, devicePlugins} {
		entries, dirErr := os.ReadDir(filepath.Join(root, dir))
		if dirErr != nil && !errors.Is(dirErr, fs.ErrNotExist) {
			err = errors.Join(err, dirErr)
		}
		for _, e := range entries {
			if e.Type() != fs.ModeSocket {
				continue
			}
			names = append(names, e.Name())
			if !resource.IsOwnSocket(e.Name()) && slices.ContainsFunc(sharedNames, func(part string) bool { return strings.Contains(e.Name(), part) }) {
				usual = append(usual, filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, name := range resources {
		plain, shared := strings.CutPrefix(name, sharedPrefix)
		served := slices.ContainsFunc(names, func(socket string) bool { return resource.ServesResource(socket, name) })
		other := !served || slices.Contains(names, plain+".sock") // k8s-rdma-shared-dev-plugin names its socket like this
		if shared && other {
			found = append(found, "resource "+name)
		}
	}
	return append(found, usual...), err
}

// kubeletsResources returns the resources that device plugins have registered with the kubelet. It
// reads them from the kubelet's checkpoint. If there is no kubelet, it returns none.
func kubeletsResources(name string) ([]string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var checkpoint struct {
		Data struct {
			RegisteredDevices map[string]json.RawMessage
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, maxCheckpoint)).Decode(&checkpoint); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return slices.Sorted(maps.Keys(checkpoint.Data.RegisteredDevices)), nil
}
