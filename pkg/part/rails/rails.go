package rails

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
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// discover is the command that finds rails.
const discover = "railctl rails discover"

// Rails are the rails of a node by its node file.
type Rails struct {
	node  *attachment.Node
	host  *nic.Host
	nics  []resource.NIC
	byPCI map[string]int
}

// Read returns the rails of the node by its node file. It is an error if the node file has none.
func Read(n *attachment.Node, host *nic.Host) (*Rails, error) {
	if n.File == nil || n.File.Rails == nil {
		file := nodefile.Path()
		return nil, failure.New(failure.InvalidConfig, "the network needs the rail of its NIC, and the node has no rails: no \"rails\" in %s", file).
			Cure("run `%s --write` on the node, or use a network without a rail", discover)
	}
	nics, err := host.Facts(known(n))
	if err != nil {
		return nil, err
	}
	byPCI, problems := n.File.Rails.Assign(nics)
	for _, p := range problems {
		n.Log.Warn("node file's rails do not fit the node's NICs", "problem", p.Message)
	}
	return &Rails{n, host, nics, byPCI}, nil
}

// Numbers returns the numbers of the rails, ascending.
func (r *Rails) Numbers() []int { return slices.Sorted(maps.Values(r.byPCI)) }

// Selector returns the selector of the NIC that has a rail. The NIC may be lent.
func (r *Rails) Selector(rail int) (nic.Selector, error) {
	for pci, has := range r.byPCI { // a rail is one NIC
		if has == rail {
			return nic.Selector{PCI: pci}, nil
		}
	}
	return nic.Selector{}, failure.New(failure.NICNotFound, "no NIC of this node has rail %d; %s", rail, r.described()).
		Cure("correct \"rail\", or \"rails\" in %s: `%s` proposes them", r.node.File.Path, discover)
}

// RailOf returns the rail of a NIC. It is an error if the NIC has none, or another than wanted. A
// virtual function or subfunction without a rail of its own has that of its physical function,
// and a VLAN has that of the NIC that it lies on.
func (r *Rails) RailOf(found *nic.NIC, wanted netconf.Rail) (int, error) {
	name, pci := found.PCI, found.PCI
	if found.Link != nil {
		lower := r.host.NICBelow(found.Link)
		pci = r.host.NICOf(lower).PCI
		if i := slices.IndexFunc(r.nics, func(f resource.NIC) bool { return slices.Contains(f.Names, lower.Name) }); pci == "" && i >= 0 {
			pci = r.nics[i].PCI // kernels before 5.14 report no parent
		}
		name = strings.TrimSpace(found.Link.Name + " " + pci)
	}
	has, ok := r.byPCI[pci]
	if !ok {
		has, ok = r.byPCI[r.host.PhysicalFunction(pci)]
	}
	switch number := wanted.Number; {
	case !ok && number == nil:
		return 0, failure.New(failure.InvalidConfig, "the network needs the rail of its NIC, and the NIC %s has none", name).
			Cure("add the NIC to \"rails\" in %s: `%s` proposes them; or have the pod request a resource whose NICs have rails", r.node.File.Path, discover)
	case !ok:
		return 0, failure.New(failure.InvalidConfig, "the network is for rail %d, and the NIC %s has no rail", *number, name).
			Cure("have the pod request the resource of rail %d, or add the NIC to \"rails\" in %s: `%s` proposes them", *number, r.node.File.Path, discover)
	case number != nil && has != *number:
		return 0, failure.New(failure.InvalidConfig, "the network is for rail %d, and the NIC %s has rail %d", *number, name, has).
			Cure("have the pod request the resource of rail %d, or correct \"rail\"; `railctl nics -o wide` shows the rails", *number)
	}
	return has, nil
}

// SetRail sets the rail of the NIC for the other parts of an ADD, and in the record.
func (r *Rails) SetRail(tx *attachment.Tx, rail int) {
	tx.Rail, tx.Rails, tx.Record.Rail = &rail, r.Numbers(), &rail
}

// known returns what the ledger has of the NICs that are lent from this host netns, by PCI
// address, for [nic.Host.Facts].
func known(n *attachment.Node) map[string]resource.NIC {
	// ADD calls this, and a node may have many macvlans: their records are not decoded in full.
	records, errs := n.Ledger.HeldIf(n.Netns.ID, func(r *ledger.Record) bool { return !strings.HasSuffix(r.Plugin, "macvlan") })
	for _, err := range errs {
		n.Log.Warn("cannot read a record; it may be of a NIC with a rail", "err", err)
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

// described returns the rails that the node file gives, for an error.
func (r *Rails) described() string {
	if len(r.byPCI) == 0 {
		return fmt.Sprintf("%s gives none to the NICs of this node", r.node.File.Path)
	}
	var texts []string
	for _, number := range r.Numbers() {
		texts = append(texts, fmt.Sprint(number))
	}
	return fmt.Sprintf("%s gives rails %s", r.node.File.Path, strings.Join(texts, ", "))
}
