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
	links, err := n.Links()
	links = slices.DeleteFunc(links, func(l *Link) bool {
		return l.Lower != index || l.LowerAway != (at != nil) || slices.Contains(peers, l.Kind) || l.HasParent()
	})
	if len(links) == 0 || at == nil || err != nil {
		return links, err
	}
	// The list has given the namespace an id here if it had none.
	id, err := n.handle.GetNetNsIdByFd(at.fd)
	if err != nil {
		return nil, fmt.Errorf("id of netns %s in netns %s: %w", at.Path, n.Path, err)
	}
	return slices.DeleteFunc(links, func(l *Link) bool { return l.LowerNetns != id }), nil
}
