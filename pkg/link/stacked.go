package link

import "slices"

// peers are the kinds of links of which Lower is not the link below but the peer:
// to delete one deletes both.
var peers = []string{"veth", "netkit", "vxcan"}

// Stacked returns the links of the namespace that lie on the link with this index,
// directly: macvlans, VLANs, tunnels, … If away is set, that link is in another
// namespace.
func (n *Netns) Stacked(index int, away bool) ([]*Link, error) {
	links, err := n.Links()
	return slices.DeleteFunc(links, func(l *Link) bool {
		return l.Lower != index || l.LowerAway != away || slices.Contains(peers, l.Kind)
	}), err
}
