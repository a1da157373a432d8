package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// View is the result of one reading of a namespace about a link, by three requests: the
// link, the other links in its namespace, and its addresses and routes.
type View struct {
	Link  *Link   // the link itself
	Links []*Link // all links of the namespace, by index

	addresses [][]byte // payloads of RTM_NEWADDR: its addresses, in the order of the kernel
	routes    [][]byte // payloads of RTM_NEWROUTE: the routes that leave by it
}

// View reads the link with this index. The error wraps [ErrNotFound] when there is
// none.
func (n *Netns) View(index int) (*View, error) {
	v := &View{}
	var err error
	if v.Links, err = n.links(index); err != nil {
		return nil, err
	}
	if v.Link = v.ByIndex(index); v.Link == nil {
		return nil, notFound(unix.ENODEV, withIndex(index), n.Path)
	}
	v.addresses, err = n.dump(unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC), func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err == nil && ofIP(h) && int(binary.NativeEndian.Uint32(h[4:])) == index
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	v.routes, err = n.routes(func(_ []byte, attrs nlattr.Attrs) bool { return leavesBy(attrs, index) })
	return v, err
}

// Views reads the namespace as View does, once for all links that are wanted, and returns
// their views by index of the link. They share Links.
func (n *Netns) Views(wanted func(*Link) bool) (map[int]*View, error) {
	links, err := n.Links()
	if err != nil {
		return nil, err
	}
	views := map[int]*View{}
	for _, l := range links {
		if wanted(l) {
			views[l.Index] = &View{Link: l, Links: links}
		}
	}
	addresses, err := n.dump(unix.RTM_GETADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC), func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err == nil && ofIP(h) && views[int(binary.NativeEndian.Uint32(h[4:]))] != nil
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	for _, m := range addresses {
		v := views[int(binary.NativeEndian.Uint32(m[4:]))]
		v.addresses = append(v.addresses, m)
	}
	routes, err := n.routes(func(_ []byte, attrs nlattr.Attrs) bool { return leavesByOne(attrs, views) })
	if err != nil {
		return nil, err
	}
	for _, m := range routes {
		_, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		for index, v := range views {
			if leavesBy(attrs, index) {
				v.routes = append(v.routes, m)
			}
		}
	}
	return views, nil
}

// leavesByOne reports whether a route leaves by the link of one of the views.
func leavesByOne(attrs nlattr.Attrs, views map[int]*View) bool {
	if oif, ok := attrs.Uint32(unix.RTA_OIF); ok {
		return views[int(oif)] != nil
	}
	leaves := false
	hops, _ := attrs.Get(unix.RTA_MULTIPATH)
	eachHop(hops, func(hop []byte) { leaves = leaves || views[int(binary.NativeEndian.Uint32(hop[4:]))] != nil })
	return leaves
}

// ByIndex returns the link of the namespace with this index, nil if there is none.
func (v *View) ByIndex(index int) *Link {
	if i := slices.IndexFunc(v.Links, func(l *Link) bool { return l.Index == index }); i >= 0 {
		return v.Links[i]
	}
	return nil
}

// IsUplink reports whether a default route leaves by the link, in the main table: see
// [Netns.DefaultRouteLinks].
func (v *View) IsUplink() bool {
	return slices.ContainsFunc(v.routes, func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		return err == nil && isUplinkRoute(h, attrs)
	})
}

// Addresses returns the link's addresses, without those that the kernel makes itself
// (IPv6 link-local).
func (v *View) Addresses() []*net.IPNet {
	var found []*net.IPNet
	for _, m := range v.addresses {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil {
			continue
		}
		if a := addressOf(h, attrs); a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
			found = append(found, a)
		}
	}
	return found
}

// ofIP reports whether the message of this header is about IPv4 or IPv6.
func ofIP(header []byte) bool { return header[0] == unix.AF_INET || header[0] == unix.AF_INET6 }

// tableOf returns the number of a route's table.
func tableOf(rtmsg []byte, attrs nlattr.Attrs) uint32 {
	if table, ok := attrs.Uint32(unix.RTA_TABLE); ok {
		return table
	}
	return uint32(rtmsg[4])
}

// isUplinkRoute reports whether the route is a default route in the main table.
// Without a type it would be an "unreachable default" too, which IPv6 has on the
// loopback.
func isUplinkRoute(rtmsg []byte, attrs nlattr.Attrs) bool {
	dst, _ := attrs.Get(unix.RTA_DST)
	return rtmsg[1] == 0 && len(bytes.Trim(dst, "\x00")) == 0 && tableOf(rtmsg, attrs) == unix.RT_TABLE_MAIN && rtmsg[7] == unix.RTN_UNICAST
}
