package nicstate

import (
	"cmp"
	"encoding/binary"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Carried is the part of a NIC's host configuration that is also valid on the NIC in a pod.
type Carried struct {
	// Snapshot has the addresses and routes in the form of the kernel.
	Snapshot *Snapshot
	// Addresses and Routes are the same addresses and routes in the form of a CNI result. Routes
	// leaves out a route that a result can only show wrong: see [inResult].
	Addresses []*net.IPNet
	Routes    []link.Route
	// Tables are the routing tables of the routes.
	Tables []int
	// Peers are the kernel's routes to the other ends of point-to-point addresses.
	Peers []link.Route
}

// Carried returns the addresses of global scope and the routes of the snapshot. An IPv4 address
// with a DHCP lease becomes permanent, because nothing renews the lease in the pod. A route that
// expires becomes permanent as well. IPv6 addresses and routes from router advertisements are left
// out, because the pod gets its own.
func (s *Snapshot) Carried() *Carried {
	c := &Carried{Snapshot: &Snapshot{Name: s.Name, Index: s.Index, Taken: s.Taken}}
	for _, r := range s.Addresses {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofIfAddrmsg)
		if err != nil || header[3] != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		if header[0] == unix.AF_INET6 && header[2]&unix.IFA_F_PERMANENT == 0 || s.isVirtual(header, attrs) {
			continue
		}
		// The label is the host's name of the interface.
		attrs = permanent(header, attrs).Without(unix.IFA_LABEL)
		c.Snapshot.Addresses = append(c.Snapshot.Addresses, Replay{Text: r.Text, Raw: nlattr.Marshal(header, attrs)})
		c.Addresses = append(c.Addresses, link.AddressOf(header, attrs))
		if route := peerRoute(header, attrs); route != nil {
			c.Peers = append(c.Peers, *route)
		}
	}
	for _, r := range s.Routes {
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		if err != nil {
			continue
		}
		source, hasSource := attrs.Get(unix.RTA_PREFSRC)
		if header[5] == unix.RTPROT_RA || expires(attrs) < 0 ||
			hasSource && !slices.ContainsFunc(c.Addresses, func(a *net.IPNet) bool { return a.IP.Equal(source) }) {
			continue
		}
		header = slices.Clone(header)
		attrs = onOwnHops(header, attrs, s.Index)
		route := routeOf(header, attrs)
		if route.Dst.IP.To4() == nil && route.Dst.IP.IsLinkLocalUnicast() {
			continue
		}
		c.Snapshot.Routes = append(c.Snapshot.Routes, Replay{Text: r.Text, Raw: nlattr.Marshal(header, attrs.Without(unix.RTA_CACHEINFO))})
		if inResult(header, attrs) {
			c.Routes = append(c.Routes, route)
		}
		if !slices.Contains(c.Tables, route.Table) {
			c.Tables = append(c.Tables, route.Table)
		}
	}
	return c
}

// inResult reports whether a CNI result can show where the route leads. A result has one gateway
// for each route. It has no encapsulation, no type of service and no kind of route except unicast.
func inResult(rtmsg []byte, attrs nlattr.Attrs) bool {
	_, several := attrs.Get(unix.RTA_MULTIPATH)
	_, encapsulated := attrs.Get(unix.RTA_ENCAP)
	const tos, kind = 3, 7 // in struct rtmsg
	return !several && !encapsulated && rtmsg[tos] == 0 && rtmsg[kind] == unix.RTN_UNICAST
}

// onOwnHops returns a route's attributes without the nexthops by links other than index, because
// the pod does not have those links. If one nexthop is left, its flag "onlink" becomes a flag of
// the route.
func onOwnHops(rtmsg []byte, attrs nlattr.Attrs, index int) nlattr.Attrs {
	all, ok := attrs.Get(unix.RTA_MULTIPATH)
	if !ok {
		return attrs
	}
	hops, count := routes.OwnHops(all, index), 0
	result := attrs.Without(unix.RTA_MULTIPATH, routes.AttrNexthop)
	var one nlattr.Attrs
	flags := binary.NativeEndian.Uint32(rtmsg[8:])
	routes.EachHop(hops, func(hop []byte) {
		count++
		flags |= uint32(hop[2] & unix.RTNH_F_ONLINK)
		one, _ = nlattr.Parse(hop[unix.SizeofRtNexthop:])
		one = append(slices.Clone(one), nlattr.Attr{Type: unix.RTA_OIF, Value: slices.Clone(hop[4:8])})
	})
	if count == 1 {
		binary.NativeEndian.PutUint32(rtmsg[8:], flags)
		return append(result, one...)
	}
	return append(result, nlattr.Attr{Type: unix.RTA_MULTIPATH, Value: hops})
}

// MainInTable returns the routes of the snapshot's main table as routes of the given table.
func (s *Snapshot) MainInTable(table int) *Snapshot {
	moved := &Snapshot{Name: s.Name, Index: s.Index, Taken: s.Taken}
	for _, r := range s.Routes {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofRtMsg)
		if err != nil || routes.Table(header, attrs) != unix.RT_TABLE_MAIN {
			continue
		}
		header[4] = unix.RT_TABLE_UNSPEC // because rtm_table has only eight bits
		attrs = append(attrs.Without(unix.RTA_TABLE), nlattr.Attr{Type: unix.RTA_TABLE, Value: binary.NativeEndian.AppendUint32(nil, uint32(table))})
		moved.Routes = append(moved.Routes, Replay{Text: r.Text, Raw: nlattr.Marshal(header, attrs)})
	}
	return moved
}

// permanent returns an address's attributes without its lifetimes. Only a permanent IPv6 address
// that is deprecated keeps its lifetimes: they are why the kernel does not choose it as a source.
func permanent(ifaddrmsg []byte, attrs nlattr.Attrs) nlattr.Attrs {
	info, _ := attrs.Get(unix.IFA_CACHEINFO) // ifa_cacheinfo: preferred, valid, …
	if ifaddrmsg[0] == unix.AF_INET6 && len(info) >= 8 &&
		binary.NativeEndian.Uint32(info) == 0 && binary.NativeEndian.Uint32(info[4:]) == foreverLife {
		return attrs
	}
	return attrs.Without(unix.IFA_CACHEINFO)
}

// Alone returns the addresses without the routes. The kernel adds the on-link route of each
// address. It does so even if somebody else added the address's route on the host
// (IFA_F_NOPREFIXROUTE).
func (c *Carried) Alone() *Carried {
	alone := &Carried{Snapshot: &Snapshot{Name: c.Snapshot.Name, Index: c.Snapshot.Index, Taken: c.Snapshot.Taken}, Addresses: c.Addresses, Peers: c.Peers}
	for _, r := range c.Snapshot.Addresses {
		if header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofIfAddrmsg); err == nil { // no error, because Carried has parsed the message
			attrs = withFlags(attrs, link.AddressFlags(header, attrs)&^unix.IFA_F_NOPREFIXROUTE)
			alone.Snapshot.Addresses = append(alone.Snapshot.Addresses, Replay{Text: r.Text, Raw: nlattr.Marshal(header, attrs)})
		}
	}
	return alone
}

// peerRoute returns the kernel's route to the other end of a point-to-point address
// (fib_add_ifaddr, __ipv6_ifa_notify), or nil if there is no other end.
func peerRoute(ifaddrmsg []byte, attrs nlattr.Attrs) *link.Route {
	peer := link.PeerAddress(attrs)
	if peer == nil {
		return nil
	}
	route := &link.Route{Protocol: unix.RTPROT_KERNEL, Priority: attrs.Int(unix.IFA_RT_PRIORITY)}
	if ifaddrmsg[0] == unix.AF_INET6 { // for any prefix length, and even with IFA_F_NOPREFIXROUTE
		route.Dst = &net.IPNet{IP: peer, Mask: net.CIDRMask(128, 128)}
		route.Priority = cmp.Or(route.Priority, prefixMetric)
		return route
	}
	if link.AddressFlags(ifaddrmsg, attrs)&unix.IFA_F_NOPREFIXROUTE != 0 {
		return nil
	}
	mask := net.CIDRMask(int(ifaddrmsg[1]), 32)
	route.Dst = &net.IPNet{IP: peer.Mask(mask), Mask: mask}
	route.Src, _ = attrs.Get(unix.IFA_LOCAL)
	return route
}

func routeOf(rtmsg []byte, attrs nlattr.Attrs) link.Route {
	bits := 8 * net.IPv4len
	if rtmsg[0] == unix.AF_INET6 {
		bits = 8 * net.IPv6len
	}
	r := link.Route{Table: int(rtmsg[4]), Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(int(rtmsg[1]), bits)}}
	if dst, ok := attrs.Get(unix.RTA_DST); ok {
		r.Dst.IP = slices.Clone(dst)
	}
	if gw, ok := attrs.Get(unix.RTA_GATEWAY); ok {
		r.Gateway = slices.Clone(gw)
	}
	if via, ok := attrs.Get(unix.RTA_VIA); ok && len(via) > 2 { // struct rtvia: the family, 16 bits, and the address
		r.Gateway = slices.Clone(via[2:])
	}
	if metrics, err := attrs.Nested(unix.RTA_METRICS); err == nil {
		r.MTU, r.AdvMSS = metrics.Int(unix.RTAX_MTU), metrics.Int(unix.RTAX_ADVMSS)
	}
	for kind, to := range map[uint16]*int{unix.RTA_TABLE: &r.Table, unix.RTA_PRIORITY: &r.Priority} {
		if v, ok := attrs.Uint32(kind); ok {
			*to = int(v)
		}
	}
	if scope := int(rtmsg[6]); scope != unix.RT_SCOPE_UNIVERSE {
		r.Scope = &scope
	}
	return r
}
