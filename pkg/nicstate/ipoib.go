package nicstate

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// PortGUID returns the GUID of the port of the InfiniBand interface, or 0 for another link.
func (s *Snapshot) PortGUID() uint64 {
	if s.IPoIB == nil {
		return 0
	}
	return link.GUIDIn(link.ParseMAC(s.MAC))
}

// StrayChildren returns the IPoIB children of the interface with this index in n that do not belong
// to the host. The snapshots have the queue pairs of the host's children. When a pod's namespace
// ends, the kernel moves the children that the pod made to init_net (default_device_exit_net; Linux
// 5.13 and later). hosts are the snapshots of all interfaces that are lent: a child of another
// interface, in a pod, may have the same number as its parent.
func StrayChildren(n *netns.Netns, index int, s *Snapshot, hosts []*Snapshot) ([]*link.Link, error) {
	if s.IPoIB == nil {
		return nil, nil
	}
	children := slices.Clone(s.IPoIB.Children)
	for _, h := range hosts {
		if h.IPoIB != nil {
			children = append(children, h.IPoIB.Children...)
		}
	}
	links, err := link.Links(n)
	return slices.DeleteFunc(links, func(l *link.Link) bool { return !l.IsChildOf(index) || slices.Contains(children, l.QueuePair()) }), err
}
