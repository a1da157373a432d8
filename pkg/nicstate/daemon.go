package nicstate

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// frrFirst to frrLast are the protocols of FRRouting that the kernel's header does not list: LDP,
// SHARP, PBR, staticd, OpenFabric and SRTE (zebra/rt_netlink.h of FRRouting).
const frrFirst, frrLast = 193, 198

// daemons are the protocols of routing daemons (rtm_protocol, linux/rtnetlink.h).
var daemons = []byte{
	unix.RTPROT_GATED, unix.RTPROT_MRT, unix.RTPROT_ZEBRA, unix.RTPROT_BIRD, unix.RTPROT_DNROUTED, unix.RTPROT_XORP, unix.RTPROT_NTK,
	unix.RTPROT_MROUTED, unix.RTPROT_KEEPALIVED, unix.RTPROT_BABEL, unix.RTPROT_OPENR, unix.RTPROT_BGP, unix.RTPROT_ISIS,
	unix.RTPROT_OSPF, unix.RTPROT_RIP, nhrp, unix.RTPROT_EIGRP,
}

const nhrp = 191 // protocol of FRRouting's nhrpd

// byRoutingDaemon reports whether a routing daemon made the route. Such a route is part of the
// daemon's state: the daemon adds the route again itself, or has withdrawn it.
func byRoutingDaemon(rtmsg []byte) bool { return isRoutingDaemon(rtmsg[5]) }

// isRoutingDaemon reports whether this protocol of a route or rule is the protocol of a routing
// daemon.
func isRoutingDaemon(protocol byte) bool {
	return slices.Contains(daemons, protocol) || protocol >= frrFirst && protocol <= frrLast
}

// configured returns a copy of the snapshot without the routes that routing daemons made.
func (s *Snapshot) configured() *Snapshot {
	c := *s
	c.Routes = slices.DeleteFunc(slices.Clone(s.Routes), func(r Replay) bool {
		header, _, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		return err == nil && byRoutingDaemon(header)
	})
	return &c
}
