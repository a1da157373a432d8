package link

import "slices"

// peers are the kinds of links whose Lower is their peer, not a link below them. To
// delete one deletes both.
var peers = []string{"veth", "netkit", "vxcan"}

// Stacked returns the links of the namespace that lie directly on the link with this
// index: macvlans, VLANs, tunnels and others. If away is set, that link is in another
// namespace.
func (n *Netns) Stacked(index int, away bool) ([]*Link, error) {
	links, err := n.Links()
	return slices.DeleteFunc(links, func(l *Link) bool {
		return l.Lower != index || l.LowerAway != away || slices.Contains(peers, l.Kind)
	}), err
}
