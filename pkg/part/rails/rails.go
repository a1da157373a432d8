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

// discover is the command that proposes rails.
const discover = "railctl rails discover"

// Rails has the rails of a node, as the node file of that node defines them.
type Rails struct {
	node  *attachment.Node
	host  *nic.Host
	nics  []resource.NIC
	byPCI map[string]int
}

// Read returns the rails of the node, as its node file defines them. It returns an error if the
// node file defines no rails.
func Read(n *attachment.Node, host *nic.Host) (*Rails, error) {
	if n.File == nil || n.File.Rails == nil {
		file := nodefile.Path()
		return nil, failure.New(failure.InvalidConfig, "the network needs the rail of its NIC, but the node has no rails: there is no \"rails\" in %s", file).
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

// Selector returns the selector of the NIC that has the given rail. The NIC may be lent.
func (r *Rails) Selector(rail int) (nic.Selector, error) {
	for pci, has := range r.byPCI { // a rail has only one NIC
		if has == rail {
			return nic.Selector{PCI: pci}, nil
		}
	}
	return nic.Selector{}, failure.New(failure.NICNotFound, "no NIC of this node has rail %d; %s", rail, r.described()).
		Cure("correct \"rail\", or correct \"rails\" in %s: `%s` proposes the rails", r.node.File.Path, discover)
}

// RailOf returns the rail of the NIC found. It returns an error if the NIC has no rail, or another
// rail than wanted. A virtual function or subfunction without a rail of its own has the rail of its
// physical function. A VLAN has the rail of the NIC on which the VLAN lies.
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
		return 0, failure.New(failure.InvalidConfig, "the network needs the rail of its NIC, but the NIC %s has no rail", name).
			Cure("add the NIC to \"rails\" in %s: `%s` proposes the rails; or have the pod request a resource whose NICs have rails", r.node.File.Path, discover)
	case !ok:
		return 0, failure.New(failure.InvalidConfig, "the network is for rail %d, but the NIC %s has no rail", *number, name).
			Cure("have the pod request the resource of rail %d, or add the NIC to \"rails\" in %s: `%s` proposes the rails", *number, r.node.File.Path, discover)
	case number != nil && has != *number:
		return 0, failure.New(failure.InvalidConfig, "the network is for rail %d, but the NIC %s has rail %d", *number, name, has).
			Cure("have the pod request the resource of rail %d, or correct \"rail\"; `railctl nics -o wide` shows the rails", *number)
	}
	return has, nil
}

// SetRail sets the rail of the NIC in tx, for the other parts of the ADD, and in the record.
func (r *Rails) SetRail(tx *attachment.Tx, rail int) {
	tx.Rail, tx.Rails, tx.Record.Rail = &rail, r.Numbers(), &rail
}

// known returns what the ledger knows about the NICs that are lent from this host netns, by PCI
// address. [nic.Host.Facts] needs it.
func known(n *attachment.Node) map[string]resource.NIC {
	// Every ADD calls this, and a node may have many macvlans, so their records are not fully
	// decoded.
	records, errs := n.Ledger.HeldIf(n.Netns.ID, func(r *ledger.Record) bool { return !strings.HasSuffix(r.Plugin, "macvlan") })
	for _, err := range errs {
		n.Log.Warn("cannot read a record, which may be that of a NIC with a rail", "err", err)
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

// described returns a text about the rails in the node file, for an error.
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
