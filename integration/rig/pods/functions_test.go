//go:build machines

package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// physical is the function with virtual functions, and driver their driver's directory.
const (
	physical = "0000:01:00.0"
	driver   = "/sys/bus/pci/drivers/mlx5_core/"
)

// podsOfFunctions makes pods of the networks that sriov-network-operator renders, unchanged. The device plugin
// allocates the virtual functions.
func (n *node) podsOfFunctions() {
	n.t.Helper()
	n.must(kmod.ReloadNICs("slots=0"))
	n.makeFunctions("openshift.io/storage")
	n.IP("link", "set", n.on(physical), "up")
	for _, kind := range []string{"SriovNetwork", "SriovNetwork_with_all"} {
		n.podOfFunction(kind, "openshift.io/storage", nil, func(*testnet.Netns) {
			table := n.IP("-d", "link", "show", n.on(physical))
			if strings.Contains(table, "vlan 100, qos 5") != (kind == "SriovNetwork_with_all") {
				n.t.Errorf("%s: the functions are\n%s", kind, table)
			}
		})
	}
}

// podsOfHCAFunctions makes pods of a SriovIBNetwork, with the GUID in the pod's annotation, and of a network for
// ib-kubernetes, with what that writes there.
func (n *node) podsOfHCAFunctions() {
	n.t.Helper()
	const guid = "02:00:00:00:00:00:0b:01"
	n.must(kmod.ReloadNICs("slots=11,12,13,14,15,16,17,18"))
	nics := n.inSlots("0x0200")
	n.must(kmod.ReloadNICs("link_layer=ib slots=0,18"))
	manager, err := opensm.StartOn(n.t.Context(), n.t.TempDir(), nics[len(nics)-1],
		opensm.OpenFabric+"red=0x6, ipoib : 0x"+strings.ReplaceAll(guid, ":", "")+"=full ;\n")
	n.must(err)
	of := n.on(physical)
	n.t.Cleanup(func() {
		n.IP("link", "set", of, "down") // while the manager answers
		manager.Kill()
	})
	n.makeFunctions("openshift.io/ib", "nvidia.com/ib")
	n.IP("link", "set", of, "up")
	for kind, c := range map[string]struct {
		resource string
		more     map[string]any
	}{
		"SriovIBNetwork":            {"openshift.io/ib", map[string]any{"infiniband-guid": guid}},
		"ib_sriov_of_ib_kubernetes": {"nvidia.com/ib", map[string]any{"cni-args": map[string]any{"guid": guid, "mellanox.infiniband.app": "configured"}}},
	} {
		n.podOfFunction(kind, c.resource, c.more, func(pod *testnet.Netns) {
			l, err := link.ByName(pod.Netns, "net1")
			if err != nil || !strings.HasSuffix(l.MAC.String(), guid) || !l.IsUp() {
				n.t.Errorf("%s: net1 is %+v, %v", kind, l, err)
			}
		})
	}
}

// makeFunctions makes a virtual function for each resource, with a GUID if it is InfiniBand, and has it offered.
func (n *node) makeFunctions(resources ...string) {
	n.t.Helper()
	dir := "/sys/bus/pci/devices/" + physical
	n.must(os.WriteFile(dir+"/sriov_numvfs", fmt.Append(nil, len(resources)), 0))
	n.t.Cleanup(func() { n.must(os.WriteFile(dir+"/sriov_numvfs", []byte("0"), 0)) })
	var pools []string
	offered := map[string]string{}
	for i, resource := range resources {
		target, err := os.Readlink(fmt.Sprintf("%s/virtfn%d", dir, i))
		n.must(err)
		pci := filepath.Base(target)
		pools = append(pools, fmt.Sprintf("{name: %s, mode: exclusive, select: {pciAddresses: [%q]}}", resource, pci))
		offered[resource] = "1"
		l, err := link.ByName(n.Netns.Netns, n.on(pci))
		n.must(err)
		if !l.IsIPoIB() {
			continue
		}
		guid := fmt.Sprintf("02:00:00:00:00:00:00:7%d", i)
		n.Batch(nil, fmt.Sprintf("link set %s vf %d node_guid %s", n.on(physical), i, guid), fmt.Sprintf("link set %s vf %d port_guid %s", n.on(physical), i, guid))
		for _, file := range []string{"unbind", "bind"} {
			n.must(os.WriteFile(driver+file, []byte(pci), 0))
		}
		n.IP("link", "set", n.on(pci), "up")
		n.await("the carrier of "+pci, func() error {
			l, err := link.ByName(n.Netns.Netns, n.on(pci))
			if err == nil && !l.OperUp {
				err = errors.New("none")
			}
			return err
		})
	}
	n.write(nodeFile, "resources: {pools: ["+strings.Join(pools, ", ")+"]}\n")
	n.allocatable(offered)
}

// podOfFunction makes a pod of one network of the example, and looks into it. more are keys of its annotation.
func (n *node) podOfFunction(kind, resource string, more map[string]any, look func(pod *testnet.Netns)) {
	n.t.Helper()
	config, err := examples.Rendered(kind)
	n.must(err)
	var conf struct{ Name string }
	n.must(json.Unmarshal([]byte(config), &conf))
	n.network(conf.Name, resource, config)
	n.pools++
	before, devices := n.State(), n.devices()
	element := map[string]any{"name": conf.Name}
	for key, value := range more {
		element[key] = value
	}
	annotation, err := json.Marshal([]any{element})
	n.must(err)
	name := strings.ToLower(strings.ReplaceAll(kind, "_", "-"))
	_, container := n.run(podOf(name, []string{string(annotation)}, map[string]any{resource: "1"}))
	look(testnet.OfProcess(n.t, n.processes()[container]))
	n.delete(name)
	n.asBefore(before, devices)
}
