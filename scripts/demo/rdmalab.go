package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// firstSlot is the PCI slot of each node's first NIC in the rig, from which the
// kernel derives the NICs' names. Their driver connects the NICs of the two
// nodes rail by rail.
var firstSlot = map[string]int{"node1": 11, "node2": 21}

// oneMore is a NIC of the rig that is not a rail, and stays on node1.
const oneMore = "enp1s0np0"

// makeRDMANodes makes two nodes of the rig's NICs. The first is the machine's
// own host netns, the second a netns, like that of a node inside a node. names
// are the NICs in the order of the pods' interfaces, so that the RDMA devices,
// which the kernel numbers by slot, are in the same order, as on the users'
// nodes.
func makeRDMANodes(mode string, names []string) error {
	if err := makeHosts(); err != nil {
		return err
	}
	for _, node := range nodes {
		if err := furnishNode(node, mode, names); err != nil {
			return err
		}
	}
	if err := runAll("ip link set " + oneMore + " name " + shared + " mtu 9000 up"); err != nil {
		return err
	}
	return settleIn()
}

// makeHosts makes the host netns of the nodes.
func makeHosts() error {
	if _, err := os.Stat("/run/netns/" + nodes[0]); err != nil {
		if err := runAll(fmt.Sprintf("ip netns attach %s %d", nodes[0], os.Getpid())); err != nil {
			return err
		}
	}
	return runAll("ip netns add "+nodes[1], "ip -n "+nodes[1]+" link set lo up")
}

// furnishNode moves its NICs to a node, with their RDMA devices in exclusive
// mode, and sets them up as administrators do.
func furnishNode(node, mode string, names []string) error {
	var missing, named []string
	for i, name := range names {
		nic := fmt.Sprintf("ens%dnp0", firstSlot[node]+i)
		if node != nodes[0] && mode == exclusive {
			device, err := filepath.Glob("/sys/class/net/" + nic + "/device/infiniband/*")
			if err != nil || len(device) != 1 {
				return fmt.Errorf("the NIC %s has the RDMA devices %v, not one (%w)", nic, device, err)
			}
			if err := runAll("rdma dev set " + filepath.Base(device[0]) + " netns " + node); err != nil {
				return err
			}
		}
		// A name may still be in use by another NIC.
		missing = append(missing, fmt.Sprintf("link set %s netns %s name rail%d", nic, node, i))
		named = append(named,
			fmt.Sprintf("link set rail%d name %s mtu %d", i, name, jumbo),
			fmt.Sprintf("link property add dev %s altname %s", name, altnameOf(name)),
			fmt.Sprintf("link set %s up", name))
	}
	if err := ipBatch(nodes[0], missing); err != nil {
		return err
	}
	return ipBatch(node, named)
}

func altnameOf(name string) string {
	for _, r := range rails {
		if r.name == name {
			return r.altname
		}
	}
	return "none"
}

// ipBatch runs several commands of ip(8) in one process.
func ipBatch(netns string, commands []string) error {
	file := filepath.Join(workDir, "batch")
	if err := os.WriteFile(file, []byte(strings.Join(commands, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return runAll("ip -n " + netns + " -batch " + file)
}

// clearAway ends the pods and the second node, and makes the kernel find all
// NICs again.
func clearAway(pods ...string) error {
	if err := unix.DeleteModule("fakerdma", 0); err != nil {
		return fmt.Errorf("unload the NICs' driver: %w", err)
	}
	for _, netns := range append(pods, nodes[1]) {
		if err := runAll("ip netns del " + netns); err != nil {
			return err
		}
	}
	return kmod.Load(wire.NICModule, "")
}

// setMode sets the RDMA mode. The kernel changes it only if there is no other
// netns, and needs a moment to destroy deleted ones.
func setMode(c cni, mode string) error {
	for deadline := time.Now().Add(2 * settleTime); ; time.Sleep(50 * time.Millisecond) {
		_, err := run(filepath.Join(c.bin, "railctl"), "rdma", "mode", mode, "--now-only")
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
