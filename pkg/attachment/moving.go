package attachment

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// OnTheirWay returns the keys of the attachments whose NIC the kernel is about to move to init_net:
// a driver has the NIC, but the NIC is not found. stale are the attachments to look at, as
// [Node.Stale] returned them. RDMA devices do not count.
func (n *Node) OnTheirWay(stale []*ledger.Record) (map[ledger.Key]bool, error) {
	links, err := link.Links(n.Netns)
	if err != nil {
		return nil, err
	}
	// The kernel moves the NICs to init_net, which may be another netns than the host netns. A
	// container may not be permitted to open init_net.
	if first, err := netns.Open(netns.InitPath); err == nil {
		if !first.ID.Equal(n.Netns.ID) {
			initLinks, _ := link.Links(first) // after an error, a NIC in init_net counts as on its way
			links = append(links, initLinks...)
		}
		first.Close()
	}
	moving := map[ledger.Key]bool{}
	for _, r := range stale {
		if !n.Ledger.Holds(r) || !r.LendsNetdev() || r.Loan.Identity.ParentDev == "" {
			continue
		}
		seen := slices.ContainsFunc(links, func(l *link.Link) bool { return l.ParentDev == r.Loan.Identity.ParentDev })
		if !seen && n.Host().Bound(r.Loan.Identity.ParentDev) {
			moving[r.Key] = true
		}
	}
	return moving, nil
}

// NICsMoving returns the number of NICs that the kernel is about to return from dead pods.
// It returns 0 if they cannot be counted.
func (n *Node) NICsMoving() int {
	stale, _ := n.Stale() // an unreadable record is not counted
	theirs, _ := n.OnTheirWay(stale)
	return len(theirs)
}
