package routes

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Key returns the properties by which the kernel identifies a route, apart from the route's
// nexthops.
func Key(rtmsg []byte, attrs nlattr.Attrs) string {
	dst, _ := attrs.Get(unix.RTA_DST)
	src, _ := attrs.Get(unix.RTA_SRC)
	metric, _ := attrs.Uint32(unix.RTA_PRIORITY)
	const srcLen, tos = 2, 3 // in struct rtmsg
	return fmt.Sprintf("%d %x/%d from %x/%d tos %d table %d metric %d", rtmsg[0], dst, rtmsg[1], src, rtmsg[srcLen], rtmsg[tos], Table(rtmsg, attrs), metric)
}

// List returns the IPv4 and IPv6 routes of all tables for which wanted returns true. A route by a
// nexthop object has the object's hops.
func List(n *netns.Netns, wanted func(rtmsg []byte, attrs nlattr.Attrs) bool) ([][]byte, error) {
	return ListBy(n, func(wanted func(m []byte) bool) ([][]byte, error) {
		return n.Dump(unix.RTM_GETROUTE, &nl.RtMsg{}, wanted)
	}, wanted)
}

// ListBy is like [List], but uses dump to read the routes, which may return only some of them.
func ListBy(n *netns.Netns, dump func(wanted func(m []byte) bool) ([][]byte, error), wanted func(rtmsg []byte, attrs nlattr.Attrs) bool) ([][]byte, error) {
	incomplete := false
	found, err := dump(func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil || !nlattr.IsIP(h) {
			return false
		}
		_, needs := needsNexthop(attrs)
		incomplete = incomplete || needs
		return needs || wanted(h, attrs)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of netns %s: %w", n.Path, err)
	}
	if !incomplete {
		return found, nil
	}
	objects, err := Objects(n)
	if err != nil {
		return nil, err
	}
	var complete [][]byte
	for _, m := range found {
		h, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if id, needs := needsNexthop(attrs); needs {
			object, ok := objects[id]
			if !ok {
				continue // the object was deleted meanwhile, with its routes
			}
			m = object.complete(objects, h, attrs)
			if h, attrs, err = nlattr.ParseMessage(m, unix.SizeofRtMsg); err != nil || !wanted(h, attrs) {
				continue
			}
		}
		complete = append(complete, m)
	}
	return complete, nil
}

// LeavesBy reports whether the route, or one of its nexthops, leaves by the link with this index.
func LeavesBy(attrs nlattr.Attrs, index int) bool {
	if oif, ok := attrs.Uint32(unix.RTA_OIF); ok {
		return int(oif) == index
	}
	leaves := false
	hops, _ := attrs.Get(unix.RTA_MULTIPATH)
	EachHop(hops, func(hop []byte) { leaves = leaves || int(binary.NativeEndian.Uint32(hop[4:])) == index })
	return leaves
}

// Table returns the number of a route's table.
func Table(rtmsg []byte, attrs nlattr.Attrs) uint32 {
	if table, ok := attrs.Uint32(unix.RTA_TABLE); ok {
		return table
	}
	return uint32(rtmsg[4])
}

// IsUplink reports whether the route is a default route in the main table. It checks the type of
// the route, because IPv6 has an "unreachable default" route on the loopback.
func IsUplink(rtmsg []byte, attrs nlattr.Attrs) bool {
	dst, _ := attrs.Get(unix.RTA_DST)
	return rtmsg[1] == 0 && len(bytes.Trim(dst, "\x00")) == 0 && Table(rtmsg, attrs) == unix.RT_TABLE_MAIN && rtmsg[7] == unix.RTN_UNICAST
}
