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
)

// The kubelet's directories, in the node's root file system.
const (
	devicePlugins    = "/var/lib/kubelet/device-plugins"
	pluginsRegistry  = "/var/lib/kubelet/plugins_registry"
	kubeletsDevices  = devicePlugins + "/kubelet_internal_checkpoint"
	sharedPrefix     = "rdma/" // of k8s-rdma-shared-dev-plugin's resources, unless its configuration sets another
	mostOfCheckpoint = 16 << 20
)

// sharedNames are the parts of the names of resources in the examples of
// k8s-rdma-shared-dev-plugin and of NVIDIA's network-operator. The plugin's
// socket is named after its resource, without a prefix.
var sharedNames = []string{"hca_shared", "rdma_shared", "rdma-shared"}

// ourSockets begin the names of the sockets of rail-agent's device plugin, in which "-" is
// in place of the slash of a resource, and a long name ends after wholeName bytes:
// "rail-cni-<resource>-<instance>.sock", "rail-cni.io-<resource>-reg.sock".
var ourSockets = []string{"rail-cni-", "rail-cni.io-"}

// wholeName is the length of the part of a resource's name that is in each socket's name.
const wholeName = 39

// SharedDevicePlugin returns the signs that k8s-rdma-shared-dev-plugin serves the node
// with this root file system: the kubelet's resources with its usual prefix that
// rail-agent does not serve, and sockets with its usual names. Others are not recognized.
func SharedDevicePlugin(root string) (found []string, err error) {
	resources, err := kubeletsResources(filepath.Join(root, kubeletsDevices))
	var names, usual []string // of all sockets; paths of others' with a usual name
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
			if _, ours := ourResource(e.Name()); !ours && slices.ContainsFunc(sharedNames, func(part string) bool { return strings.Contains(e.Name(), part) }) {
				usual = append(usual, filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, name := range resources {
		plain, shared := strings.CutPrefix(name, sharedPrefix)
		other := !served(name, names) || slices.Contains(names, plain+".sock") // that plugin names its socket so
		if shared && other {
			found = append(found, "resource "+name)
		}
	}
	return append(found, usual...), err
}

// ourResource returns what follows the beginning in the name of a socket of rail-agent.
func ourResource(socket string) (rest string, ours bool) {
	for _, begin := range ourSockets {
		if rest, ours = strings.CutPrefix(socket, begin); ours {
			return rest, true
		}
	}
	return "", false
}

// served reports whether one of the sockets is that of rail-agent for the resource.
func served(resource string, sockets []string) bool {
	name := strings.ReplaceAll(resource, "/", "-")
	return slices.ContainsFunc(sockets, func(socket string) bool {
		rest, ours := ourResource(socket)
		if len(name) > wholeName {
			return ours && strings.HasPrefix(rest, name[:wholeName])
		}
		last := strings.LastIndexByte(rest, '-') // before the instance
		return ours && last >= 0 && rest[:last] == name
	})
}

// kubeletsResources returns the resources that device plugins have registered
// with the kubelet, from the kubelet's checkpoint; none if there is no kubelet.
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
	if err := json.NewDecoder(io.LimitReader(f, mostOfCheckpoint)).Decode(&checkpoint); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return slices.Sorted(maps.Keys(checkpoint.Data.RegisteredDevices)), nil
}
