package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

// These are the kubelet's directories of sockets, as paths in the node's root file system.
const (
	devicePlugins   = "/var/lib/kubelet/device-plugins"
	pluginsRegistry = "/var/lib/kubelet/plugins_registry"
)

// checkpoint writes the text as the kubelet's checkpoint of device plugins.
func checkpoint(t *testing.T, root, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, devicePlugins), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, devicePlugins, "kubelet_internal_checkpoint"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// socket makes a device plugin's socket. The path of a socket may have at most 107 bytes, so the
// socket is made through a file descriptor of its directory.
func socket(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

const warning = "warning: k8s-rdma-shared-dev-plugin"

func TestExclusiveModeWarnsOfTheSharedDevicePlugin(t *testing.T) {
	need.Root(t)
	for name, c := range map[string]struct {
		registered string   // with the kubelet
		sockets    []string // below /var/lib/kubelet
		want       []string
	}{
		"its resource": {
			`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"rdma/a":["0","1"],"nvidia.com/gpu":["x"]}},"Checksum":1}`, nil,
			[]string{warning + " serves this node (resource rdma/a), and does not start in exclusive mode", "Use the device plugin of rail-agent"},
		},
		"its socket": {"", []string{"device-plugins/hca_shared_devices_a.sock"}, []string{"(" + devicePlugins + "/hca_shared_devices_a.sock)"}},
		"its socket where kubelets look today": {
			"", []string{"plugins_registry/rdma_shared_device_b.sock"}, []string{"(" + pluginsRegistry + "/rdma_shared_device_b.sock)"},
		},
		"others'": {
			`{"Data":{"RegisteredDevices":{"nvidia.com/mlnx":[]}}}`, []string{"device-plugins/kubelet.sock", "plugins_registry/nvidia.com_mlnx.sock"}, nil,
		},
		"our own": {
			`{"Data":{"RegisteredDevices":{"rdma/hca_gpu":["0"],"rdma/roce_rail_0":["0000:0c:00.0"]}}}`,
			[]string{"device-plugins/rail-cni-rdma-hca_gpu-1a2b.sock", "plugins_registry/rail-cni.io-rdma-roce_rail_0-reg.sock"},
			nil,
		},
		"our own with a usual name": {
			`{"Data":{"RegisteredDevices":{"rdma/hca_shared_devices_a":["0"]}}}`, []string{"device-plugins/rail-cni-rdma-hca_shared_devices_a-1a2b.sock"}, nil,
		},
		"both serve it": {
			`{"Data":{"RegisteredDevices":{"rdma/hca_gpu":["0"]}}}`,
			[]string{"plugins_registry/hca_gpu.sock", "device-plugins/rail-cni-rdma-hca_gpu-1a2b.sock"},
			[]string{"(resource rdma/hca_gpu)"},
		},
		"its resource beside ours": {
			`{"Data":{"RegisteredDevices":{"rdma/a":["0"],"rdma/a_rail_1":["0"]}}}`,
			[]string{"device-plugins/rail-cni-rdma-a_rail_1-1a2b.sock"},
			[]string{"(resource rdma/a)"},
		},
		"no kubelet":        {"", nil, nil},
		"not a checkpoint":  {"{", nil, []string{"warning: cannot find out whether k8s-rdma-shared-dev-plugin serves this node: "}},
		"of another shape":  {`{"Data":{"RegisteredDevices":["rdma/a"]}}`, nil, []string{"cannot find out whether "}},
		"without resources": {`{"Data":null}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t)
			if c.registered != "" {
				checkpoint(t, root, c.registered)
			}
			for _, s := range c.sockets {
				socket(t, filepath.Join(root, "/var/lib/kubelet", s))
			}
			out, errOut, code := modeIn(root, "exclusive", "--persist-only")
			if code != 0 || len(c.want) == 0 && errOut != "" {
				t.Errorf("exit code %d, %s, %s", code, out, errOut)
			}
			contains(t, "stderr", errOut, c.want...)
			if _, errOut, _ := modeIn(root, "shared", "--persist-only"); errOut != "" {
				t.Errorf("in shared mode: %s", errOut)
			}
		})
	}
}
