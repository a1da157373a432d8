package nicstate

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// prefixMetric is the metric of the kernel's route to the prefix of an IPv6 address
// (IP6_RT_PRIO_ADDRCONF of include/net/ip6_route.h). For an IPv4 address the metric is 0.
const prefixMetric = 256

// prefix is a route that the kernel adds to the prefix of an address.
type prefix struct {
	family byte
	bits   byte
	to     string // the network address
	metric uint32
}

// prefixesOf returns the routes that the kernel adds for these addresses of a link (fib_add_ifaddr,
// inet6_addr_add). The kernel adds none for an address with IFA_F_NOPREFIXROUTE. In that case
// somebody else adds the route, for example NetworkManager, and also names the kernel as the
// route's origin.
func prefixesOf(addresses [][]byte) map[prefix]bool {
	all := map[prefix]bool{}
	for _, m := range addresses {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || link.AddressFlags(header, attrs)&unix.IFA_F_NOPREFIXROUTE != 0 {
			continue
		}
		p := prefix{family: header[0]}
		if p.family == unix.AF_INET6 {
			p.metric = prefixMetric
		}
		if metric, ok := attrs.Uint32(unix.IFA_RT_PRIORITY); ok {
			p.metric = metric
		}
		address, _ := attrs.Get(unix.IFA_ADDRESS)
		all[p.match(address, header[1])] = true
		if local, ok := attrs.Get(unix.IFA_LOCAL); ok && p.family == unix.AF_INET6 { // the route to the address itself, if the address has a peer
			all[p.match(local, byte(8*len(local)))] = true
		}
	}
	return all
}

// match returns p as the route to the first bits of an address. address may be missing.
func (p prefix) match(address []byte, bits byte) prefix {
	size := net.IPv4len
	if p.family == unix.AF_INET6 {
		size = net.IPv6len
	}
	ip := make(net.IP, size)
	copy(ip, address)
	p.to, p.bits = string(ip.Mask(net.CIDRMask(int(bits), 8*size))), bits
	return p
}

// origin distinguishes the routes of a link that the kernel adds itself from the other routes of
// the link.
type origin struct {
	prefixes map[prefix]bool
	// anyTable is set if these routes may be in a table other than main, because the link is in a
	// VRF.
	anyTable bool
	// advertisements is set if the kernel acts on router advertisements that the link receives.
	advertisements bool
}

// originOf returns the origin of the routes of l, which has these addresses and settings.
func originOf(l *link.Link, addresses [][]byte, sysctls map[string]string) origin {
	accept, forwarding := sysctls["ipv6/conf/accept_ra"], sysctls["ipv6/conf/forwarding"]
	// ipv6_accept_ra of include/net/ipv6.h
	return origin{prefixesOf(addresses), l.Master != 0, accept != "0" && (accept != "1" || forwarding != "1")}
}

// byKernel reports whether the kernel adds the route again, for an address or from a router.
func (o origin) byKernel(rtmsg []byte, attrs nlattr.Attrs) bool {
	protocol, kind, flags := rtmsg[5], rtmsg[7], binary.NativeEndian.Uint32(rtmsg[8:])
	switch {
	case flags&unix.RTM_F_CLONED != 0, protocol == unix.RTPROT_REDIRECT:
		return true
	case protocol == unix.RTPROT_RA:
		return o.advertisements
	case protocol != unix.RTPROT_KERNEL:
		return false
	case kind != unix.RTN_UNICAST, expires(attrs) != 0: // routes to the addresses themselves, and routes from a router
		return true
	}
	return o.isConnected(rtmsg, attrs)
}

// isConnected reports whether the route is the kernel's own route to the prefix of an address.
func (o origin) isConnected(rtmsg []byte, attrs nlattr.Attrs) bool {
	if rtmsg[5] != unix.RTPROT_KERNEL || rtmsg[7] != unix.RTN_UNICAST || routes.Table(rtmsg, attrs) != unix.RT_TABLE_MAIN && !o.anyTable {
		return false
	}
	dst, _ := attrs.Get(unix.RTA_DST)
	metric, _ := attrs.Uint32(unix.RTA_PRIORITY)
	return o.prefixes[prefix{family: rtmsg[0], metric: metric}.match(dst, rtmsg[1])]
}

// expires returns how long after its reading a route expires, in hundredths of a second. It returns
// 0 if the route does not expire (rta_expires of rta_cacheinfo in include/uapi/linux/rtnetlink.h).
// The result is negative if the route has expired already: IPv6 collects such routes every half a
// minute.
func expires(attrs nlattr.Attrs) int32 {
	const off = 8 // after rta_clntref and rta_lastuse
	info, _ := attrs.Get(unix.RTA_CACHEINFO)
	if len(info) < off+4 {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(info[off:]))
}
