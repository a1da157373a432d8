package loan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// discover is the command that finds rails.
const discover = "railctl rails discover"

// OfRail returns the selector of the NIC that has a rail by the node file. The NIC may be
// lent.
func OfRail(n *attachment.Node, host *nic.Host, rail int) (nic.Selector, error) {
	_, rails, err := railsOf(n, host, rail)
	if err != nil {
		return nic.Selector{}, err
	}
	for pci, r := range rails { // a rail is one NIC
		if r == rail {
			return nic.Selector{PCI: pci}, nil
		}
	}
	return nic.Selector{}, failure.WithCure(failure.New(failure.NICNotFound, "no NIC of this node has rail %d; %s", rail, described(n.File, rails)),
		fmt.Sprintf("correct \"rail\", or \"rails\" in %s: `%s` proposes them", n.File.Path, discover))
}

// CheckRail returns an error if the node file does not give the NIC the rail. A virtual
// function or subfunction without a rail of its own has that of its physical function, and
// a VLAN has that of the NIC that it lies on.
func CheckRail(n *attachment.Node, host *nic.Host, found *nic.NIC, rail int) error {
	nics, rails, err := railsOf(n, host, rail)
	if err != nil {
		return err
	}
	name, pci := found.PCI, found.PCI
	if found.Link != nil {
		lower := host.NICBelow(found.Link)
		pci = host.Of(lower).PCI
		if i := slices.IndexFunc(nics, func(f resource.NIC) bool { return slices.Contains(f.Names, lower.Name) }); pci == "" && i >= 0 {
			pci = nics[i].PCI // kernels before 5.14 report no parent
		}
		name = strings.TrimSpace(found.Link.Name + " " + pci)
	}
	has, ok := rails[pci]
	if !ok {
		has, ok = rails[host.PhysicalFunction(pci)]
	}
	switch {
	case !ok:
		return failure.WithCure(failure.New(failure.InvalidConfig, "the network is for rail %d, and the NIC %s has no rail", rail, name),
			fmt.Sprintf("have the pod request the resource of rail %d, or add the NIC to \"rails\" in %s: `%s` proposes them", rail, n.File.Path, discover))
	case has != rail:
		return failure.WithCure(failure.New(failure.InvalidConfig, "the network is for rail %d, and the NIC %s has rail %d", rail, name, has),
			fmt.Sprintf("have the pod request the resource of rail %d, or correct \"rail\"; `railctl nics -o wide` shows the rails", rail))
	}
	return nil
}

// railsOf returns the node's NICs, and their rails by PCI address. It is an error if the
// node file has none; wanted is for the error's text.
func railsOf(n *attachment.Node, host *nic.Host, wanted int) (nics []resource.NIC, byPCI map[string]int, err error) {
	if n.File == nil || n.File.Rails == nil {
		file := netconf.NodeFilePath()
		return nil, nil, failure.WithCure(failure.New(failure.InvalidConfig, "the network is for rail %d, and the node has no rails: no \"rails\" in %s", wanted, file),
			fmt.Sprintf("run `%s --write` on the node, or name the NIC by another key", discover))
	}
	if nics, err = host.Facts(known(n)); err != nil {
		return nil, nil, err
	}
	byPCI, problems := n.File.Rails.Assign(nics)
	for _, p := range problems {
		n.Log.Warn("problem with the rails of the node file", "problem", p.Message)
	}
	return nics, byPCI, nil
}

// known returns what the ledger has of the NICs that are lent from this host netns, by PCI
// address, for [nic.Host.Facts].
func known(n *attachment.Node) map[string]resource.NIC {
	// ADD calls this, and a node may have many macvlans: their records are not decoded in full.
	records, errs := n.Ledger.ListIf(func(r *ledger.Record) bool {
		return !strings.HasSuffix(r.Plugin, "macvlan") && r.Phase != ledger.Freeing && r.HostNetns.Equal(n.Netns.ID)
	})
	for _, err := range errs {
		n.Log.Warn("unreadable record, perhaps of a NIC with a rail", "err", err)
	}
	found := map[string]resource.NIC{}
	for _, r := range records {
		if r.Loan == nil || r.Loan.PCI == "" {
			continue
		}
		lent := resource.NIC{Names: []string{r.Loan.Name}, MAC: r.Loan.Identity.PermMAC}
		if s := r.Loan.Snapshot; s != nil {
			lent.Names = append(lent.Names, s.AltNames...)
			if lent.MAC == "" {
				lent.MAC = s.MAC
			}
			lent.LinkType = nic.LinkType(s.MAC)
		}
		if r.RDMA != nil {
			for _, d := range r.RDMA.Devices {
				if d.ParentDev == r.Loan.PCI {
					lent.RDMA = append(lent.RDMA, d.Name)
					if d.Uverbs != "" {
						lent.CharDevices = append(lent.CharDevices, nic.CharDevice(d.Uverbs))
					}
				}
			}
		}
		found[r.Loan.PCI] = lent
	}
	return found
}

// described returns the rails that a node file gives, for an error.
func described(file *netconf.NodeFile, rails map[string]int) string {
	if len(rails) == 0 {
		return fmt.Sprintf("%s gives none to the NICs of this node", file.Path)
	}
	var texts []string
	for _, r := range slices.Sorted(maps.Values(rails)) {
		texts = append(texts, fmt.Sprint(r))
	}
	return fmt.Sprintf("%s gives rails %s", file.Path, strings.Join(texts, ", "))
}
