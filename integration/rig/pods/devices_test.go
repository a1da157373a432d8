//go:build machines

package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

const (
	nodeFile   = "/etc/rail-cni/node.yaml"
	sharedFile = "/etc/rail-cni/rdma-devices/config.json"
	shared     = "rdma/hca_gpu" // the users' resource
	perRail    = "rdma/roce"
	devInfo    = "/var/run/k8s.cni.cncf.io/devinfo/dp"
)

// usersShared is the configuration of k8s-rdma-shared-dev-plugin that the users' cluster
// runs.
const usersShared = `{"periodicUpdateInterval": 300, "configList": [{"resourceName": "hca_gpu", "rdmaHcaMax": 8, "selectors":
	{"ifNames": ["ens12np0", "ens11np0", "ens13np0", "ens14np0", "ens16np0", "ens15np0", "ens17np0", "ens18np0"]}}]}`

// inSlots returns the PCI addresses of the NICs or GPUs behind switches, in the order of
// their slots, which is that of their addresses.
func (n *node) inSlots(class string) (addresses []string) {
	n.t.Helper()
	files, err := filepath.Glob("/sys/bus/pci/devices/*/class")
	n.must(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		n.must(err)
		address := filepath.Base(filepath.Dir(file))
		if strings.HasPrefix(string(text), class) && !strings.HasPrefix(address, "0000:00:") {
			addresses = append(addresses, address)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// topology compares the matrix of "railctl topology" with how the machine was built.
func (n *node) topology() {
	n.t.Helper()
	out, err := exec.Command(filepath.Join(testnet.Bin(n.t), "railctl"), "topology").Output()
	n.must(err)
	var gpus []rig.Port
	nics := []rig.Port{{NUMA: -1}} // that of [node.reachTheServer], with the first address
	for _, p := range rig.GPUNode {
		if p.Slot > 18 {
			gpus = append(gpus, p)
		} else {
			nics = append(nics, p)
		}
	}
	all := slices.Concat(gpus, nics)
	name := func(i int) string {
		if i < len(gpus) {
			return "GPU" + strconv.Itoa(i)
		}
		return "NIC" + strconv.Itoa(i-len(gpus))
	}
	var want strings.Builder
	for i := range all {
		want.WriteString(name(i) + " ")
	}
	want.WriteString("NUMA\n")
	for i, a := range all {
		want.WriteString(name(i) + " ")
		for j, b := range all {
			if i == j {
				want.WriteString("X ")
			} else {
				want.WriteString(distance(a, b) + " ")
			}
		}
		numa := strconv.Itoa(a.NUMA)
		if a.NUMA < 0 {
			numa = "-" // the machine does not say
		}
		want.WriteString(numa + "\n")
	}
	matrix, _, _ := strings.Cut(string(out), "\n\n")
	var got strings.Builder
	for line := range strings.Lines(matrix) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	if got.String() != want.String() {
		n.t.Errorf("railctl topology:\n%s\nnot\n%s", out, want.String())
	}
}

// distance is the word for what is between two slots.
func distance(a, b rig.Port) string {
	switch {
	case a.NUMA != b.NUMA:
		return "SYS"
	case a.Bridge != b.Bridge:
		return "NODE"
	case a.Switch != b.Switch:
		return "PHB"
	case a.Nested != b.Nested:
		return "PXB"
	}
	return "PIX"
}

// offerDevices starts rail-agent with the users' configuration, and a device plugin for
// the GPUs.
func (n *node) offerDevices() {
	n.t.Helper()
	gpus := gpuplugin.GPUs(n.inSlots("0x0302")...)
	// /proc/driver has no directory for NVIDIA's driver without it.
	n.must(unix.Mount("tmpfs", "/proc/driver", "tmpfs", 0, ""))
	n.must(gpuplugin.WriteProc("/proc", gpus))
	plugin, err := gpuplugin.Start(gpuplugin.Options{KubeletDir: "/var/lib/kubelet", GPUs: gpus})
	n.must(err)
	t := n.t
	n.t.Cleanup(func() {
		if err := plugin.Close(); err != nil {
			t.Error(err)
		}
	})
	n.write(sharedFile, usersShared)
	n.write(nodeFile, "resources: {sharedConfigFile: "+sharedFile+"}\n")
	n.agent, err = process.Start(process.Spec{
		Name: "rail-agent", Log: filepath.Join(logDir, "rail-agent.log"), Args: []string{filepath.Join(testnet.Bin(n.t), "rail-agent"), "run"},
		Env: []string{"PATH=" + programs + ":" + os.Getenv("PATH")},
	})
	n.must(err)
	n.t.Cleanup(n.agent.Kill)
	n.allocatable(map[string]string{shared: "8", gpuplugin.Resource: "8"})
}

// allocatable waits until the node offers these numbers of devices.
func (n *node) allocatable(want map[string]string) {
	n.t.Helper()
	n.await(fmt.Sprint("allocatable ", want), func() error {
		var node struct {
			Status struct{ Allocatable map[string]string }
		}
		text, err := n.api.Get(n.t.Context(), kube.Resource{Version: "v1", Plural: "nodes"}, nodeName)
		if err == nil {
			err = json.Unmarshal(text, &node)
		}
		for resource, count := range want {
			if got := node.Status.Allocatable[resource]; err == nil && got != count {
				err = fmt.Errorf("%s: %q", resource, got)
			}
		}
		return err
	})
}

// podOfTwoRails makes a pod with two rails by the devices that the kubelet allocated, and
// compares what everybody says of them. Then it takes the carrier of one of them away.
func (n *node) podOfTwoRails() {
	n.t.Helper()
	rails := []int{5, 2} // in the order of the pod's networks
	n.write(nodeFile, fmt.Sprintf("rails: {auto: pciOrder}\nresources: {pools: [{name: %s, mode: perRail, select: {rails: all}}], health: {down: 2s, up: 3s}}\n", perRail))
	counts := map[string]string{}
	for rail := range 8 {
		counts[railResource(rail)] = "1"
	}
	n.allocatable(counts)
	limits, networks := map[string]any{}, []string{}
	for _, rail := range rails {
		n.railNetwork(rail)
		limits[railResource(rail)], networks = "1", append(networks, railName(rail))
	}
	before, devices := n.State(), n.devices()
	name, container := n.run(podOf("rails", networks, limits))
	env, err := exec.Command(programs+"/ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", "env", container, "sh", "-c",
		fmt.Sprintf("echo $PCIDEVICE_RDMA_ROCE_RAIL_%d $PCIDEVICE_RDMA_ROCE_RAIL_%d", rails[0], rails[1])).CombinedOutput()
	n.must(err)
	nics := n.inSlots("0x0200")
	var want []string
	for _, rail := range rails {
		want = append(want, nics[rail])
	}
	for who, got := range map[string][]string{
		"the variables in the container": strings.Fields(string(env)), "device information files": n.deviceInfo(rails, want),
		"network-status": n.networkStatus(name), "the ledger": n.lent(),
	} {
		if !slices.Equal(got, want) {
			n.t.Errorf("%s: %v, not %v", who, got, want)
		}
	}
	n.health(name, want[0])
	n.delete(name)
	n.asBefore(before, devices)
	n.allocatable(counts)
	n.podOfUpstream(counts)
}

// podOfUpstream makes a pod with a NIC that the device plugin allocates, and the reference
// plugin host-device moves. The ledger has no record of it. The node must offer counts.
func (n *node) podOfUpstream(counts map[string]string) {
	n.t.Helper()
	const rail = 7
	resource := railResource(rail)
	n.network("upstream", resource, fmt.Sprintf(`{"cniVersion": "0.3.1", "name": "upstream", "type": %q}`, upstreamPlugin))
	pci := n.inSlots("0x0200")[rail]
	host := n.on(pci)
	name, container := n.run(podOf("upstream", []string{"upstream"}, map[string]any{resource: "1"}))
	out, err := exec.Command(programs+"/ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", "env", container, "sh", "-c",
		fmt.Sprintf("echo $PCIDEVICE_RDMA_ROCE_RAIL_%d; readlink /sys/class/net/net1/device", rail)).CombinedOutput()
	if lines := strings.Fields(string(out)); err != nil || len(lines) != 2 || lines[0] != pci || filepath.Base(lines[1]) != pci {
		n.t.Errorf("in the container: %v\n%swant %s twice", err, out, pci)
	}
	if got := n.on(pci); got != "" {
		n.t.Errorf("%s is on the host", got)
	}
	time.Sleep(12 * time.Second) // more than between two looks of the device plugin
	n.allocatable(counts)
	n.delete(name)
	n.await("the NIC's return", func() error {
		if got := n.on(pci); got != host {
			return fmt.Errorf("%q is on the host, not %q", got, host)
		}
		return nil
	})
	n.allocatable(counts)
}

// on returns the name of the NIC with the PCI address if it is on the host, else "".
func (n *node) on(pci string) string {
	n.t.Helper()
	links, err := link.Links(n.Netns.Netns)
	n.must(err)
	for _, l := range links {
		if l.ParentDev == pci {
			return l.Name
		}
	}
	return ""
}

func railName(rail int) string     { return fmt.Sprintf("rail-%d", rail) }
func railResource(rail int) string { return fmt.Sprintf("%s_rail_%d", perRail, rail) }

// railNetwork makes the NAD of a rail.
func (n *node) railNetwork(rail int) {
	n.t.Helper()
	n.network(railName(rail), railResource(rail), fmt.Sprintf(`{"cniVersion": "0.3.1", "name": %q, "type": "host-device", "rail": %d,
		"capabilities": {"CNIDeviceInfoFile": true},
		"ipam": {"type": "whereabouts", "range": "172.31.%d.0/24", "gateway": "172.31.%d.1"}}`, railName(rail), rail, rail+1, rail+1))
}

// network makes a NAD for the devices of a resource, if there is none of that name.
func (n *node) network(name, resource, config string) {
	n.t.Helper()
	nads := kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions", Namespace: "default"}
	_, err := n.api.Create(n.t.Context(), nads, map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}},
		"spec":     map[string]any{"config": config},
	})
	if !kube.IsAlreadyExists(err) {
		n.must(err)
	}
}

// podOf returns a pod with networks and devices.
func podOf(name string, networks []string, limits map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{nadv1.NetworkAttachmentAnnot: strings.Join(networks, ",")}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "resources": map[string]any{"limits": limits}}}},
	}
}

// deviceInfo returns the addresses in the device information files of these devices.
func (n *node) deviceInfo(rails []int, ids []string) (addresses []string) {
	n.t.Helper()
	for i, rail := range rails {
		text, err := os.ReadFile(filepath.Join(devInfo, fmt.Sprintf("rdma-roce_rail_%d-%s-device.json", rail, ids[i])))
		if err != nil {
			n.t.Error(err)
			continue
		}
		var info struct {
			PCI struct {
				Address string `json:"pci-address"`
			}
		}
		n.must(json.Unmarshal(text, &info))
		addresses = append(addresses, info.PCI.Address)
	}
	return addresses
}

// networkStatus returns the addresses in the pod's network-status, in the order of its
// networks.
func (n *node) networkStatus(name string) (addresses []string) {
	n.t.Helper()
	text, err := n.api.Get(n.t.Context(), kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}, name)
	n.must(err)
	var pod struct {
		Metadata struct{ Annotations map[string]string }
	}
	n.must(json.Unmarshal(text, &pod))
	var entries []nadv1.NetworkStatus
	n.must(json.Unmarshal([]byte(pod.Metadata.Annotations[nadv1.NetworkStatusAnnot]), &entries))
	for _, e := range entries {
		if e.DeviceInfo != nil && e.DeviceInfo.Pci != nil {
			addresses = append(addresses, e.DeviceInfo.Pci.PciAddress)
		}
	}
	return addresses
}

// lent returns the addresses of the NICs in the ledger that are lent, in the order of their
// interfaces in the pod, net1 first. The first network's macvlan has a record, too.
func (n *node) lent() (addresses []string) {
	n.t.Helper()
	l, err := ledger.Open("/run/rail-cni")
	n.must(err)
	defer l.Close()
	records, errs := l.List()
	n.must(errors.Join(errs...))
	slices.SortFunc(records, func(a, b *ledger.Record) int { return strings.Compare(a.IfName, b.IfName) })
	for _, r := range records {
		if r.Loan != nil {
			addresses = append(addresses, r.Loan.PCI)
		}
	}
	return addresses
}

// health sets the carrier of a NIC off and on, and waits for the health in the pod's status.
func (n *node) health(pod, pci string) {
	n.t.Helper()
	for _, step := range []struct{ carrier, health string }{{"0", "Unhealthy"}, {"1", "Healthy"}} {
		began := time.Now()
		n.must(os.WriteFile(filepath.Join("/sys/bus/pci/devices", pci, "carrier"), []byte(step.carrier), 0))
		n.await(pci+" is "+step.health, func() error {
			text, err := n.api.Get(n.t.Context(), kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}, pod)
			if err != nil {
				return err
			}
			var status struct {
				Status struct {
					ContainerStatuses []struct {
						AllocatedResourcesStatus []struct {
							Resources []struct{ ResourceID, Health string }
						}
					}
				}
			}
			n.must(json.Unmarshal(text, &status))
			for _, c := range status.Status.ContainerStatuses {
				for _, r := range c.AllocatedResourcesStatus {
					for _, d := range r.Resources {
						if d.ResourceID == pci && d.Health == step.health {
							return nil
						}
					}
				}
			}
			return fmt.Errorf("%+v", status)
		})
		n.t.Logf("%s is %s %v after its carrier is %s", pci, step.health, time.Since(began).Round(time.Millisecond), step.carrier)
	}
}
