//go:build machines

package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/integration/devices/fakekubelet"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// The pools of the node whose power fails: an exclusive one of the first rails, and one
// resource for each of the others.
const (
	exclusivePool = "rdma/nic"
	perRailPool   = "rdma/roce"
	firstPerRail  = 4
)

// Directories on the disk. The kubelet's is there on real nodes as well. Most have device
// information in memory: here an old file outlives the reset.
const (
	diskKubelet = "/disk/kubelet"
	diskDevInfo = "/disk/devinfo"
)

// Pods that got a NIC from the kubelet before the power failed. The kubelet keeps the
// devices of pods in its checkpoint, a file. After the reset it admits again each pod that
// the API server still has for the node, with the devices that it had and without another
// Allocate; if one of them is not in the device plugin's list, or Unhealthy, the pod fails
// for good (pkg/kubelet/cm/devicemanager, devicesToAllocate). It forgets a pod that was
// deleted meanwhile.
const (
	stayingPod, stayingRail = "staying", 4
	deletedPod, deletedRail = "deleted", 5
)

var holders = map[int]string{stayingRail: stayingPod, deletedRail: deletedPod}

func argsOf(pod string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + fakekubelet.Namespace + ";K8S_POD_NAME=" + pod
}

func perRailResource(rail int) string { return fmt.Sprintf("%s_rail_%d", perRailPool, rail) }

// pools returns the IDs of the devices of each resource.
func pools() map[string][]string {
	all := map[string][]string{}
	for rail := range rails {
		resource := exclusivePool
		if rail >= firstPerRail {
			resource = perRailResource(rail)
		}
		all[resource] = append(all[resource], nicPCI(rail))
	}
	return all
}

// writePools writes the node file.
func (n *node) writePools() {
	n.t.Helper()
	var list []string
	first, others := "", ""
	for rail := range rails {
		list = append(list, fmt.Sprintf("{id: %d, pci: %q}", rail, nicPCI(rail)))
		if rail < firstPerRail {
			first += fmt.Sprint(rail, ", ")
		} else {
			others += fmt.Sprint(rail, ", ")
		}
	}
	text := fmt.Sprintf("paths: [\"/**\"]\nrails: [%s]\nresources: {pools: [{name: %s, mode: exclusive, select: {rails: [%s]}}, {name: %s, mode: perRail, select: {rails: [%s]}}]}\n",
		strings.Join(list, ", "), exclusivePool, first, perRailPool, others)
	if err := os.WriteFile(testnet.OpenNodeFile, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// poolKubelet is a kubelet that watches rail-agent.
type poolKubelet struct {
	*fakekubelet.Kubelet

	n *node

	mu         sync.Mutex
	registered map[string]fakekubelet.Registration
	lists      map[string][]map[string]string // the health by ID, of each list of a resource
}

// offerTo starts a kubelet, and rail-agent, which registers with it.
func (n *node) offerTo(pods map[string]map[string][]string) *poolKubelet {
	n.t.Helper()
	k := &poolKubelet{n: n, registered: map[string]fakekubelet.Registration{}, lists: map[string][]map[string]string{}}
	k.Kubelet = fakekubelet.Start(n.t, diskKubelet, func(r fakekubelet.Registration) { go k.watch(r) })
	for pod, devices := range pods {
		k.Give(pod, devices)
	}
	n.keepWith([]string{"--kubelet-dir", diskKubelet, "--devinfo-dir", diskDevInfo, "--cdi-dir", "off"})
	k.await("all resources are registered", func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.lists) != len(pools()) {
			return fmt.Errorf("there are lists of %v", slices.Sorted(maps.Keys(k.lists)))
		}
		return nil
	})
	return k
}

// watch notes the lists of a resource until its device plugin ends.
func (k *poolKubelet) watch(r fakekubelet.Registration) {
	conn, err := r.Connect()
	if err != nil {
		return // then there is no list
	}
	defer conn.Close()
	stream, err := deviceplugin.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &deviceplugin.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		health := map[string]string{}
		for _, d := range list.GetDevices() {
			health[d.GetID()] = d.GetHealth()
		}
		k.mu.Lock()
		k.registered[r.Resource] = r
		k.lists[r.Resource] = append(k.lists[r.Resource], health)
		k.mu.Unlock()
	}
}

// await waits until done returns nil.
func (k *poolKubelet) await(what string, done func() error) {
	k.n.t.Helper()
	var err error
	if !testnet.Within(3*time.Minute, func() bool { err = done(); return err == nil }) {
		k.n.t.Fatalf("%s: %v", what, err)
	}
}

// allocate allocates the NIC of a rail for a pod, as the kubelet does when it admits one.
func (k *poolKubelet) allocate(pod string, rail int) {
	k.n.t.Helper()
	k.mu.Lock()
	registration := k.registered[perRailResource(rail)]
	k.mu.Unlock()
	conn, err := registration.Connect()
	if err != nil {
		k.n.t.Fatal(err)
	}
	defer conn.Close()
	ids := []string{nicPCI(rail)}
	answer, err := deviceplugin.NewDevicePluginClient(conn).Allocate(k.n.t.Context(),
		&deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		k.n.t.Fatalf("Allocate for %s: %v", pod, err)
	}
	variable := fmt.Sprintf("PCIDEVICE_RDMA_ROCE_RAIL_%d", rail)
	if got := answer.GetContainerResponses()[0].GetEnvs()[variable]; got != nicPCI(rail) {
		k.n.t.Errorf("%s: %s is %q, not %s", pod, variable, got, nicPCI(rail))
	}
	k.Give(pod, map[string][]string{perRailResource(rail): ids})
}

func deviceInfoFile(rail int) string {
	return filepath.Join(diskDevInfo, fmt.Sprintf("rdma-roce_rail_%d-%s-device.json", rail, nicPCI(rail)))
}

// hasDeviceInfo returns an error unless the device information file of a rail has its NIC.
func hasDeviceInfo(rail int) error {
	text, err := os.ReadFile(deviceInfoFile(rail))
	if err != nil {
		return err
	}
	var info struct {
		PCI struct {
			Address string `json:"pci-address"`
		}
	}
	err = json.Unmarshal(text, &info)
	if err == nil && info.PCI.Address != nicPCI(rail) {
		err = fmt.Errorf("device information of rail %d: %s", rail, text)
	}
	return err
}

// allocateHolders allocates the NICs of the pods that get one from the kubelet. They are
// lent afterwards.
func (n *node) allocateHolders() {
	n.t.Helper()
	k := n.offerTo(nil)
	for rail, pod := range holders {
		k.allocate(pod, rail)
		f, err := os.Open(deviceInfoFile(rail))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close()) // the device plugin need not
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// offerAfterTheReset starts the kubelet and rail-agent on the node whose power failed.
func (n *node) offerAfterTheReset() *poolKubelet {
	n.t.Helper()
	for rail := range holders {
		if err := hasDeviceInfo(rail); err != nil {
			n.t.Fatal(err) // else the test would not see that it is removed
		}
		then := time.Now().Add(-time.Hour) // it is kept for a minute
		if err := os.Chtimes(deviceInfoFile(rail), then, then); err != nil {
			n.t.Fatal(err)
		}
	}
	return n.offerTo(map[string]map[string][]string{stayingPod: {perRailResource(stayingRail): {nicPCI(stayingRail)}}})
}

// devicesAfterTheReset looks at what the kubelet was told since rail-agent runs again, and
// uses it. All NICs are home, and are as in before.
func (n *node) devicesAfterTheReset(k *poolKubelet, before string) {
	n.t.Helper()
	k.await("all NICs are healthy", func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		for resource, lists := range k.lists {
			for id, health := range lists[len(lists)-1] {
				if health != deviceplugin.Healthy {
					return fmt.Errorf("%s: %s is %s", resource, id, health)
				}
			}
		}
		return nil
	})
	k.await("the file of the deleted pod is removed", func() error {
		if _, err := os.Lstat(deviceInfoFile(deletedRail)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", deviceInfoFile(deletedRail), err)
		}
		return nil
	})
	if err := hasDeviceInfo(stayingRail); err != nil {
		n.t.Error(err)
	}

	// The pod that stays gets another sandbox, and no other Allocate.
	use := func(sandbox, pod string, rail int) {
		n.t.Helper()
		p := n.pod(sandbox)
		add := p.call("ADD", podName(rail), n.diskConfig(rail))
		add.Args = argsOf(pod)
		n.MustRun(add)
		if got := n.records(); len(got) != 1 || got[0].Loan == nil || got[0].Loan.PCI != nicPCI(rail) {
			n.t.Errorf("the ledger of a node with %s lent: %+v", nicPCI(rail), got)
		}
		if err := hasDeviceInfo(rail); err != nil {
			n.t.Error(err)
		}
		n.MustRun(add.With("DEL"))
		n.untouched(before)
	}
	use("staying-again", stayingPod, stayingRail)
	k.Forget(stayingPod)
	const nextPod = "next"
	k.allocate(nextPod, deletedRail)
	use("next-pod", nextPod, deletedRail)
	k.Forget(nextPod)

	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, want := range pools() {
		for i, list := range k.lists[resource] {
			if got := slices.Sorted(maps.Keys(list)); !slices.Equal(got, want) {
				n.t.Errorf("%s: list %d has %v, not %v", resource, i+1, got, want)
			}
			if resource == perRailResource(stayingRail) && list[nicPCI(stayingRail)] != deviceplugin.Healthy {
				n.t.Errorf("%s: list %d: the kubelet would not start %s again: %v", resource, i+1, stayingPod, list)
			}
		}
		n.t.Logf("%s: %d lists of %d NICs", resource, len(k.lists[resource]), len(want))
	}
}
