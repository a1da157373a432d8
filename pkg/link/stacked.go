package link

import (
	"fmt"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// peers are the kinds of links whose Lower is their peer, and not a link below them. Deleting such
// a link also deletes its peer.
var peers = []string{"veth", "netkit", "vxcan"}

// Stacked returns the virtual links of the namespace n that are stacked directly on the link with
// this index: macvlans, VLANs, tunnels, IPoIB children and so on. lower is the namespace of that
// lower link. It is nil if the lower link is in n.
func Stacked(n *netns.Netns, index int, lower *netns.Netns) ([]*Link, error) {
	all, err := Links(n)
	// If n itself has an IPoIB parent with this index, the children in n belong to that parent.
	other := lower != nil && slices.ContainsFunc(all, func(l *Link) bool { return l.Index == index && l.Kind == KindIPoIB && l.HasParent() })
	links := slices.DeleteFunc(all, func(l *Link) bool {
		if l.IsIPoIBChild() {
			return other || !l.IsChildOf(index)
		}
		return l.Lower != index || l.LowerInOtherNetns != (lower != nil) || slices.Contains(peers, l.Kind) || l.HasParent()
	})
	if len(links) == 0 || lower == nil || err != nil {
		return links, err
	}
	// When the kernel listed the links, it gave the namespace lower an id in n, if lower had none.
	id, err := n.Handle().GetNetNsIdByFd(lower.FD())
	if err != nil {
		return nil, fmt.Errorf("id of netns %s in netns %s: %w", lower.Path, n.Path, err)
	}
	return slices.DeleteFunc(links, func(l *Link) bool { return !l.IsIPoIBChild() && l.LowerNetns != id }), nil
}

// carriers are the kinds of links whose packets leave by the link below them, unchanged or with a
// tag. RDMA works through such links, but not through a tunnel. IPoIB is not in the list, because
// IPoIB child interfaces have the parent device themselves.
var carriers = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"}

// aggregates are the kinds of links whose packets leave by their members. "device" is in the list
// for a NIC that has another NIC as a part: Hyper-V's netvsc has a virtual function below it.
var aggregates = []string{"bond", "team", "device"}

// Bounds of [Below]: the number of levels, which the kernel itself limits (MAX_NEST_DEV), and the
// number of links.
const (
	maxLevels = 8
	maxLinks  = 64
)

// IsStacked reports whether l has no hardware of its own, so that its packets leave by a link below
// it, or by its members.
func (l *Link) IsStacked() bool {
	return l.Kind != "device" && (slices.Contains(carriers, l.Kind) || slices.Contains(aggregates, l.Kind))
}

// Below returns l and the links of the namespace by which the packets of l leave, from top to
// bottom: the link below a VLAN or macvlan, and the members of a bond or team.
func Below(n *netns.Netns, l *Link) ([]*Link, error) {
	if !slices.Contains(carriers, l.Kind) && !slices.Contains(aggregates, l.Kind) {
		return []*Link{l}, nil
	}
	links, err := Links(n)
	if err != nil {
		return nil, err
	}
	return below(l, links), nil
}

func below(l *Link, links []*Link) []*Link {
	seen := map[int]bool{l.Index: true}
	found := []*Link{l}
	layer := found
	for range maxLevels {
		var next []*Link
		for _, m := range links {
			leaves := func(above *Link) bool { return above.leavesBy(m) }
			if len(found) < maxLinks && !seen[m.Index] && slices.ContainsFunc(layer, leaves) {
				seen[m.Index] = true
				found, next = append(found, m), append(next, m)
			}
		}
		layer = next
	}
	return found
}

// leavesBy reports whether packets of l leave by m.
func (l *Link) leavesBy(m *Link) bool {
	if slices.Contains(aggregates, l.Kind) && m.Master == l.Index {
		return true
	}
	return slices.Contains(carriers, l.Kind) && !l.LowerInOtherNetns && l.Lower == m.Index
}
