//go:build machines

package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/integration/devices/fakekubelet"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Paths in the machine. k8s-rdma-shared-dev-plugin knows no other directory of the kubelet.
const (
	sharedPlugin  = "/peers/k8s-rdma-shared-dp"
	sharedConfig  = "/peers/config.json"
	sharedKubelet = "/var/lib/kubelet"
)

// sharedResource is the resource of the users' configuration.
const sharedResource = "rdma/hca_gpu"

// TestSharedDevicePluginBesideOurs starts a machine, and runs itself in it, with the real
// k8s-rdma-shared-dev-plugin and the configuration that the users' cluster has.
func TestSharedDevicePluginBesideOurs(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		n := newRDMANode(t, rdma.Exclusive, "")
		n.up(rails)
		n.sharedPluginRefusesExclusive()
		n.setMode(rdma.Shared)
		n.sharedPluginBesideOurs()
		return
	}
	program := filepath.Join(testnet.Peers(t), "devices", filepath.Base(sharedPlugin))
	files := rig.Files(t.TempDir())
	if err := errors.Join(files.PutProgram(sharedPlugin, program), files.Put(sharedConfig, "../../devices/testdata/shared-device-plugin.json")); err != nil {
		t.Fatalf("%v (run `make peers`)", err)
	}
	out, err := boot(t, []string{"RIG_FILES=" + string(files)})
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// startSharedPlugin starts the other device plugin, which writes to a log.
func (n *node) startSharedPlugin(log string) *process.Process {
	n.t.Helper()
	// Its library wants the names of PCI vendors, which a minimal host does not have.
	ids := filepath.Join(n.t.TempDir(), "pci.ids")
	must(n.t, os.WriteFile(ids, []byte("C 02  Network controller\n"), 0o600))
	p, err := process.Start(process.Spec{
		Name: "k8s-rdma-shared-dp", Log: log, Args: []string{sharedPlugin, "-config-file", sharedConfig}, Env: []string{"PCIDB_PATH=" + ids},
	})
	must(n.t, err)
	n.t.Cleanup(func() {
		p.Kill()
		if n.t.Failed() {
			n.t.Logf("%s", process.Tail(log, 60))
		}
	})
	return p
}

// sharedPluginRefusesExclusive checks what "railctl rdma mode exclusive" warns of.
func (n *node) sharedPluginRefusesExclusive() {
	n.t.Helper()
	log := filepath.Join(n.t.TempDir(), "log")
	p := n.startSharedPlugin(log)
	n.eventually("it ends in exclusive mode", func() bool { return p.Ended() != nil })
	if text := string(process.Tail(log, 5)); !strings.Contains(text, "incorrect RDMA subsystem network namespace") {
		n.t.Errorf("in exclusive mode it says\n%s", text)
	}
}

// sharedPluginBesideOurs starts rail-agent with the same configuration and a pool of another NIC
// while the other serves the first, and then ends the other.
func (n *node) sharedPluginBesideOurs() {
	n.t.Helper()
	k := &poolKubelet{n: n, registered: map[string]fakekubelet.Registration{}, lists: map[string][]map[string]string{}}
	k.Kubelet = fakekubelet.Start(n.t, sharedKubelet, func(r fakekubelet.Registration) { go k.watch(r) })
	other := n.startSharedPlugin(filepath.Join(n.t.TempDir(), "log"))
	k.awaitListed(sharedResource, 8)
	theirs, id := k.allocateOne(sharedResource)

	text, err := json.Marshal(map[string]any{"paths": []string{"/**"}, "resources": map[string]any{
		"sharedConfigFile": sharedConfig,
		"pools":            []any{map[string]any{"name": exclusivePool, "mode": "exclusive", "select": map[string]any{"ifNames": []string{n.spare}}}},
	}})
	must(n.t, err)
	must(n.t, os.WriteFile(testnet.OpenNodeFile, text, 0o600))
	devinfo := n.t.TempDir()
	log := n.keepWith([]string{"--kubelet-dir", sharedKubelet, "--devinfo-dir", devinfo, "--cdi-dir", "off"}, "ResourceTaken")
	k.awaitListed(exclusivePool, 1)
	n.eventually("rail-agent says that the resource is taken", func() bool { return strings.Contains(log(), "reason=ResourceTaken") })
	if pid := k.pidOf(sharedResource); pid != other.Pid() {
		n.t.Errorf("process %d has registered %s, not the first, %d", pid, sharedResource, other.Pid())
	}

	other.Kill()
	k.await("rail-agent takes over", func() error {
		if k.pidOf(sharedResource) != k.pidOf(exclusivePool) {
			return errors.New("rail-agent has not registered the resource")
		}
		return nil
	})
	k.awaitListed(sharedResource, 8)
	ours, sameID := k.allocateOne(sharedResource)
	if !slices.Equal(ours, theirs) || sameID != id {
		n.t.Errorf("device %s of rail-agent opens\n%v\nand device %s of k8s-rdma-shared-dev-plugin\n%v", sameID, ours, id, theirs)
	}
	n.t.Logf("one device of %s opens %v", sharedResource, ours)
}

// awaitListed waits until the last list of a resource has so many healthy devices.
func (k *poolKubelet) awaitListed(resource string, count int) {
	k.n.t.Helper()
	k.await(resource, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		healthy := 0
		lists := k.lists[resource]
		if len(lists) == 0 {
			return errors.New("it is not registered")
		}
		for _, health := range lists[len(lists)-1] {
			if health == deviceplugin.Healthy {
				healthy++
			}
		}
		if healthy != count {
			return fmt.Errorf("%d healthy devices, not %d", healthy, count)
		}
		return nil
	})
}

// pidOf returns the process that registered a resource last.
func (k *poolKubelet) pidOf(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.registered[resource].PID
}

// allocateOne allocates the first device of a resource, and returns the host paths that a
// container gets, with permissions, and the device's ID.
func (k *poolKubelet) allocateOne(resource string) (paths []string, id string) {
	k.n.t.Helper()
	k.mu.Lock()
	registration, lists := k.registered[resource], k.lists[resource]
	for known := range lists[len(lists)-1] {
		if id == "" || known < id {
			id = known
		}
	}
	k.mu.Unlock()
	conn, err := registration.Connect()
	must(k.n.t, err)
	defer conn.Close()
	answer, err := deviceplugin.NewDevicePluginClient(conn).Allocate(k.n.t.Context(),
		&deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
	must(k.n.t, err)
	for _, d := range answer.GetContainerResponses()[0].GetDevices() {
		paths = append(paths, d.GetHostPath()+" "+d.GetPermissions())
	}
	slices.Sort(paths)
	return slices.Compact(paths), id
}
