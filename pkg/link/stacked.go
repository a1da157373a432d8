package link

import (
	"fmt"
	"slices"
)

// peers are the kinds of links whose Lower is their peer, not a link below
// them. Deleting one deletes both.
var peers = []string{"veth", "netkit", "vxcan"}

// Stacked returns the virtual links of the namespace that are stacked directly
// on the link with this index: macvlans, VLANs, tunnels, … at is the namespace
// of that link, nil for n itself.
func (n *Netns) Stacked(index int, at *Netns) ([]*Link, error) {
	id := 0
	if at != nil {
		var err error
		if id, err = n.handle.GetNetNsIdByFd(at.fd); err != nil {
			return nil, fmt.Errorf("id of netns %s in netns %s: %w", at.Path, n.Path, err)
		}
		if id < 0 {
			return nil, nil // no link refers to it
		}
	}
	links, err := n.Links()
	return slices.DeleteFunc(links, func(l *Link) bool {
		return l.Lower != index || l.LowerAway != (at != nil) || l.LowerAway && l.LowerNetns != id ||
			slices.Contains(peers, l.Kind) || l.HasParent()
	}), err
}
