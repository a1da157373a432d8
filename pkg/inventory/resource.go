package inventory

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Resource returns the facts by which pools and rails select NICs. It returns the facts of each
// network function on PCI, in the order of addresses. Subfunctions are not included. If a NIC may
// not be lent, the reason is in Protected.
func (list *NICList) Resource() []resource.NIC { return list.facts }

// Pools returns the pools of the node file, and of the files that the node file names, with the
// NICs that are now in each pool. It also returns all problems with the rails and pools. It returns
// an error if a file cannot be read or has a mistake.
func (list *NICList) Pools() ([]resource.Pool, []resource.Problem, error) {
	config, err := list.File.ReadResources()
	if err != nil || config == nil {
		return nil, list.RailProblems, err
	}
	pools, problems := config.Pools(list.facts, list.Rails)
	return pools, slices.Concat(list.RailProblems, problems), nil
}

// rails sets the rails that the node file defines for the NICs. A virtual function or subfunction
// without a rail of its own has the rail of its physical function, as it has for the plugins.
func (m *machine) rails(list *NICList) {
	if list.File == nil || list.File.Rails == nil {
		return
	}
	list.Rails, list.RailProblems = list.File.Rails.Assign(list.facts)
	for i := range list.NICs {
		n := &list.NICs[i]
		if n.Representor {
			continue
		}
		for _, pci := range []string{n.PCI, n.Parent} {
			if rail, ok := list.Rails[pci]; ok && n.Rail == nil && pci != "" {
				n.Rail = &rail
			}
		}
	}
}

func (m *machine) nicOf(n *NIC, v *link.View) *nic.NIC {
	if v == nil {
		return &nic.NIC{PCI: n.PCI, Driver: n.Driver}
	}
	return &nic.NIC{PCI: n.PCI, Link: v.Link}
}
