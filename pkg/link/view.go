package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// View is what one reading of a namespace shows about a link. The reading takes three requests: for
// all links of the namespace, for addresses, and for routes.
type View struct {
	Link  *Link   // the link itself
	Links []*Link // all links of the namespace, by index

	RawAddresses [][]byte // payloads of RTM_NEWADDR: the link's addresses, in the kernel's order
	RawRoutes    [][]byte // payloads of RTM_NEWROUTE: the routes that leave by the link
}

// ReadView reads the link with this index. The error wraps [ErrNotFound] if there is no such link.
func ReadView(n *netns.Netns, index int) (*View, error) {
	v := &View{}
	var err error
	if v.Links, err = listLinks(n, index); err != nil {
		return nil, err
	}
	if v.Link = v.ByIndex(index); v.Link == nil {
		return nil, LeftError(n, index)
	}
	v.RawAddresses, err = n.Dump(unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC), func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err == nil && nlattr.IsIP(h) && int(binary.NativeEndian.Uint32(h[4:])) == index
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	v.RawRoutes, err = routes.List(n, func(_ []byte, attrs nlattr.Attrs) bool { return routes.LeavesBy(attrs, index) })
	return v, err
}

// ReadViews reads the namespace as [ReadView] does, but only once for all links for which wanted
// returns true. It returns the views by the index of their link. All views share Links.
func ReadViews(n *netns.Netns, wanted func(*Link) bool) (map[int]*View, error) {
	links, err := Links(n)
	if err != nil {
		return nil, err
	}
	views := map[int]*View{}
	for _, l := range links {
		if wanted(l) {
			views[l.Index] = &View{Link: l, Links: links}
		}
	}
	addresses, err := n.Dump(unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC), func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err == nil && nlattr.IsIP(h) && views[int(binary.NativeEndian.Uint32(h[4:]))] != nil
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	for _, m := range addresses {
		v := views[int(binary.NativeEndian.Uint32(m[4:]))]
		v.RawAddresses = append(v.RawAddresses, m)
	}
	messages, err := routes.List(n, func(_ []byte, attrs nlattr.Attrs) bool { return leavesByOne(attrs, views) })
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		_, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		for index, v := range views {
			if routes.LeavesBy(attrs, index) {
				v.RawRoutes = append(v.RawRoutes, m)
			}
		}
	}
	return views, nil
}

// leavesByOne reports whether a route leaves by a link that has a view.
func leavesByOne(attrs nlattr.Attrs, views map[int]*View) bool {
	if oif, ok := attrs.Uint32(unix.RTA_OIF); ok {
		return views[int(oif)] != nil
	}
	leaves := false
	hops, _ := attrs.Get(unix.RTA_MULTIPATH)
	routes.EachHop(hops, func(hop []byte) { leaves = leaves || views[int(binary.NativeEndian.Uint32(hop[4:]))] != nil })
	return leaves
}

// ByIndex returns the link of the namespace with this index, or nil if there is none.
func (v *View) ByIndex(index int) *Link {
	if i := slices.IndexFunc(v.Links, func(l *Link) bool { return l.Index == index }); i >= 0 {
		return v.Links[i]
	}
	return nil
}

// IsUplink reports whether a default route in the main table leaves by the link: see
// [DefaultRouteLinks].
func (v *View) IsUplink() bool {
	return slices.ContainsFunc(v.RawRoutes, func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		return err == nil && routes.IsUplink(h, attrs)
	})
}

// Addresses returns the link's addresses, without those that the kernel makes itself
// (IPv6 link-local).
func (v *View) Addresses() []*net.IPNet {
	var found []*net.IPNet
	for _, m := range v.RawAddresses {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil {
			continue
		}
		if a := AddressOf(h, attrs); a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
			found = append(found, a)
		}
	}
	return found
}
