package railinfo

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// SetPlace sets where the NIC is. l.PCI must be set. It sets the NIC's NUMA node, the switch above it, and the distances of
// the GPUs. uuids are those of the GPUs that are known, by PCI address. It sets nothing if the tree does not have the NIC.
func (l *Rail) SetPlace(tree *pcie.Tree, gpus []*pcie.Device, uuids map[string]string) {
	device := tree.ByAddress(l.PCI)
	if device == nil {
		return
	}
	if device.NUMA >= 0 {
		numa := device.NUMA
		l.NUMA = &numa
	}
	if bridges := bridgesOf(device.Path); len(bridges) >= 3 { // root port, upstream, downstream port
		l.PCIeSwitch = bridges[len(bridges)-2]
	}
	l.GPUs = gpusOf(tree, l.PCI, gpus, uuids)
}

// bridgesOf returns the bridges in a path, without the host bridge.
func bridgesOf(path []string) []string {
	for len(path) > 0 && strings.HasPrefix(path[0], "pci") {
		path = path[1:]
	}
	return path
}

// gpusOf returns the GPUs of the node, with the nearest first.
func gpusOf(tree *pcie.Tree, pci string, all []*pcie.Device, uuids map[string]string) []GPU {
	var gpus []GPU
	for _, g := range all {
		gpus = append(gpus, GPU{PCI: g.Address, UUID: uuids[g.Address], Level: tree.Distance(pci, g.Address)})
	}
	slices.SortStableFunc(gpus, func(a, b GPU) int { return int(a.Level - b.Level) })
	return gpus
}
