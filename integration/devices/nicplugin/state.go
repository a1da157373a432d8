package nicplugin

import (
	"fmt"

	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// State is what changes of the NICs, by their numbers.
type State struct {
	Lent map[int]deviceplugin.Lent
	Down map[int]bool // the NIC has no carrier
}

// CharDevice returns the path of a NIC's char device on the node.
func CharDevice(i int) string { return fmt.Sprintf("/dev/infiniband/uverbs%d", i) }

// Inventory returns the inventory of the node in this state. sys is the directory of
// [WriteSysfs].
func (s *State) Inventory(sys string) (*deviceplugin.Inventory, error) {
	tree, err := pcie.Read(sys)
	if err != nil {
		return nil, err
	}
	found := &deviceplugin.Inventory{}
	for _, gpu := range gpuplugin.GPUs(Addresses(GPUs)...) {
		found.GPUs = append(found.GPUs, deviceplugin.GPU{PCI: gpu.PCI, UUID: gpu.UUID})
	}
	for i, f := range NICs {
		numa := f.NUMA
		nic := deviceplugin.NIC{
			NIC: resource.NIC{
				PCI: f.Address, Names: []string{NICName(i), fmt.Sprintf("enp%ds0np0", i)}, MAC: fmt.Sprintf("02:00:00:00:00:%02x", i),
				Vendor: "15b3", Device: "1021", Driver: "mlx5_core", LinkType: "ether", RDMA: []string{fmt.Sprintf("mlx5_%d", i)},
				Path: f.Above, NUMA: &numa, CharDevices: []string{CharDevice(i)},
			},
			Link: deviceplugin.LinkUp, Ports: []string{"ACTIVE"}, Distances: map[string]pcie.Distance{},
		}
		if lent, is := s.Lent[i]; is {
			nic.Lent = &lent
		}
		if s.Down[i] {
			nic.Link, nic.Ports = deviceplugin.LinkDown, []string{"DOWN"}
		}
		for _, gpu := range GPUs {
			nic.Distances[gpu.Address] = tree.Distance(f.Address, gpu.Address)
		}
		found.NICs = append(found.NICs, nic)
	}
	return found, nil
}
