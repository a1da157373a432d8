// Package devices tests the device plugin of rail-agent with a real kubelet, scheduler and
// API server, on a node of integration/cluster.
//
// Such a node has no NIC with a PCI function. The plugin therefore gets its inventory
// from a file: eight NICs and eight GPUs behind PCIe switches, on two NUMA nodes. It runs
// in a process of its own, this test binary once more, which the tests kill. The GPUs are
// offered by integration/gpuplugin. The rig has a node with NICs (integration/rig/pods).
package devices
