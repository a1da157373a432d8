package rig

import (
	"fmt"
	"strconv"
)

// Port is a slot below a PCIe switch of a machine with [Machine.GPUs].
type Port struct {
	Slot   int // 11 to 18 of a NIC, ens11np0 to ens18np0; 31 to 38 of a GPU
	Switch string
	Nested bool // behind a second switch below that one
	NUMA   int
	Bridge string // the host bridge
}

// GPUNode has the slots of a machine with [Machine.GPUs]:
//
//	NUMA 0   host bridge a   switch A: NICs 11, 12, GPUs 31, 32
//	                         switch B: NICs 13, 14, behind a second switch GPUs 33, 34
//	NUMA 1   host bridge b   switch C: NICs 15, 16, GPUs 35, 36
//	         host bridge c   switch D: NICs 17, 18, GPUs 37, 38
//
// The NICs are those of other machines in these slots. The GPUs are QEMU's device "edu",
// which the NICs' module shows as a GPU of NVIDIA: class 0302, vendor 10de.
var GPUNode = gpuNodePorts()

func gpuNodePorts() (ports []Port) {
	for i, side := range []Port{{Switch: "A", Bridge: "a"}, {Switch: "B", Bridge: "a"}, {Switch: "C", NUMA: 1, Bridge: "b"}, {Switch: "D", NUMA: 1, Bridge: "c"}} {
		for k := range 2 {
			nic, gpu := side, side
			nic.Slot, gpu.Slot = firstSlot+2*i+k, firstGPU+2*i+k
			gpu.Nested = side.Switch == "B"
			ports = append(ports, nic, gpu)
		}
	}
	return ports
}

const firstGPU = 31 // as FK_FIRST_GPU of the module

// gpuNode returns QEMU's arguments for the machine's NUMA nodes, switches, NICs and GPUs.
// memory is the machine's, in MB.
func gpuNode(memory string) (args []string) {
	device := func(format string, a ...any) { args = append(args, "-device", fmt.Sprintf(format, a...)) }
	mb, _ := strconv.Atoi(memory) // QEMU refuses what is no number, or not the sum of the nodes
	for node, size := range []int{mb - mb/2, mb / 2} {
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=ram%d,size=%dM", node, size),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d,memdev=ram%d", node, node, node))
	}
	made, chassis := map[string]bool{}, 0
	below := func(name, format string, a ...any) { // once for each name
		if !made[name] {
			made[name] = true
			device(format, a...)
		}
	}
	downstream := func(id, upstream string, slot int) {
		chassis++
		below(id, "xio3130-downstream,id=%s,bus=%s,chassis=%d,slot=%d", id, upstream, 100+chassis, slot)
	}
	for _, p := range GPUNode {
		below(p.Bridge, "pxb-pcie,id=%s,bus=pcie.0,addr=%d,bus_nr=%d,numa_node=%d", p.Bridge, 5+int(p.Bridge[0]-'a'), 0x20+0x40*int(p.Bridge[0]-'a'), p.NUMA)
		below(p.Switch+"root", "pcie-root-port,id=%sroot,bus=%s,chassis=%d,slot=%d", p.Switch, p.Bridge, p.Switch[0], p.Switch[0])
		below(p.Switch, "x3130-upstream,id=%s,bus=%sroot", p.Switch, p.Switch)
		upstream := p.Switch
		if p.Nested {
			upstream += "2"
			downstream(upstream+"port", p.Switch, 0)
			below(upstream, "x3130-upstream,id=%s,bus=%sport", upstream, upstream)
		}
		id := fmt.Sprintf("port%d", p.Slot)
		downstream(id, upstream, p.Slot)
		device("edu,bus=%s", id)
	}
	return append(args, fakeFunctions...)
}
