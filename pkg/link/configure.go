package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Route is a route to add through one interface. A zero field means the kernel's default. Without a
// gateway the destination is on the link.
type Route struct {
	Dst      *net.IPNet
	Gateway  net.IP
	MTU      int // bytes
	AdvMSS   int // bytes
	Priority int // metric
	Table    int
	Scope    *int   // RT_SCOPE_*
	Src      net.IP // source of packets whose sender has not chosen an address
	OnLink   bool   // the gateway is on the link, although no address of the link has its subnet
	Protocol int    // RTPROT_*, 0 = RTPROT_BOOT
}

// AddAddress adds an address with its subnet, and with the subnet's broadcast
// address if it is IPv4.
func AddAddress(n *netns.Netns, index int, ip *net.IPNet) error {
	err := IfGone(n, n.Handle().AddrAdd(Ref(index), &netlink.Addr{IPNet: ip}), index)
	return failure.Context(err, "add address %s", ip)
}

// manyAddresses is the number of addresses above which Silence sets the link down instead of
// removing them. Setting a link down costs the kernel one grace period. Each removal costs a walk
// through all addresses.
const manyAddresses = 100

// Silence stops the link from answering for its addresses. It removes the addresses, or sets the
// link down if that is quicker.
func Silence(n *netns.Netns, index int) error {
	addrs, err := ListAddresses(n, index)
	if err != nil {
		return err
	}
	if len(addrs) > manyAddresses {
		return SetDown(n, index)
	}
	return flush(n, index, addrs)
}

// FlushAddresses removes the addresses of the link. The link stays up, but answers for none of
// them.
func FlushAddresses(n *netns.Netns, index int) error {
	addrs, err := ListAddresses(n, index)
	if err != nil {
		return err
	}
	return flush(n, index, addrs)
}

func flush(n *netns.Netns, index int, addrs []netlink.Addr) error {
	var errs []error
	// From the last to the first: with promote_secondaries, removing the first address of a subnet
	// would make the kernel promote the next address, with all routes (__inet_del_ifa).
	for _, a := range slices.Backward(addrs) {
		if err := n.Handle().AddrDel(Ref(index), &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, failure.Context(IfGone(n, err, index), "remove address %s", a.IPNet))
		}
	}
	return errors.Join(errs...)
}

// PeerOf returns the other end of the point-to-point address ip of the link. ok is false if there
// is none.
func PeerOf(n *netns.Netns, index int, ip netip.Addr) (peer netip.Addr, ok bool) {
	addrs, _ := ListAddresses(n, index) // a link that is gone has no addresses
	for _, a := range addrs {
		if a.Peer != nil && !a.Peer.IP.Equal(a.IP) && a.IP.Equal(ip.AsSlice()) {
			peer, ok = netip.AddrFromSlice(a.Peer.IP)
			return peer.Unmap(), ok
		}
	}
	return peer, false
}

// AddRoute adds a route by the link with this index. The namespace may already have routes to the
// same destination by other links. In IPv4 the new route precedes the existing routes with the same
// metric. IPv6 makes one multipath route of all routes that have a gateway (ip-route(8)). An
// existing identical route is not an error.
func AddRoute(n *netns.Netns, index int, r Route) error {
	route := &netlink.Route{
		LinkIndex: index, Dst: r.Dst, Gw: r.Gateway, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Priority: r.Priority, Table: r.Table, Src: r.Src, Protocol: netlink.RouteProtocol(r.Protocol),
	}
	if r.OnLink {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	switch {
	case r.Scope != nil:
		route.Scope = netlink.Scope(*r.Scope)
	case r.Gateway == nil && r.Dst != nil && r.Dst.IP.To4() != nil:
		route.Scope = netlink.SCOPE_LINK
	}
	// NLM_F_EXCL, which RouteAdd uses, would fail with EEXIST if any link has a route to the
	// destination with that metric.
	err := n.Handle().RouteAddEcmp(route)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return failure.Context(IfGone(n, err, index), "add route %s via %s", r.Dst, r.Gateway)
}

// HasRoute reports whether the namespace has a route to r.Dst by the link. The route must have r's
// gateway, metric and table, as far as r has them. If r has no table, a route in any table matches,
// because the plugin sbr moves an interface's routes to a separate table.
func HasRoute(n *netns.Netns, index int, r Route) (bool, error) {
	tables, err := TablesWith(n, index, r)
	return len(tables) > 0, err
}

// TablesWith returns the tables that have a route to r.Dst by the link. The route must have r's
// gateway, metric and table, as far as r has them.
func TablesWith(n *netns.Netns, index int, r Route) ([]int, error) {
	family := netlink.FAMILY_V4
	if r.Dst.IP.To4() == nil {
		family = netlink.FAMILY_V6
	}
	found, err := nlsocket.RetryDump(func() ([]netlink.Route, error) {
		// RT_TABLE_UNSPEC, 0, selects the routes of every table.
		return n.Handle().RouteListFiltered(family, &netlink.Route{Table: r.Table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of netns %s: %w", n.Path, err)
	}
	var tables []int
	for _, have := range found {
		sameDst := have.Dst != nil && have.Dst.String() == r.Dst.String() || isDefault(have.Dst) && isDefault(r.Dst)
		if sameDst && leavesTo(have, index, r.Gateway) && (r.Priority == 0 || r.Priority == have.Priority) {
			tables = append(tables, have.Table)
		}
	}
	return tables, nil
}

// leavesTo reports whether the route, or one hop of a multipath route, leaves by the link. If
// gateway is set, the route or the hop must also have that gateway.
func leavesTo(r netlink.Route, index int, gateway net.IP) bool {
	hops := append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via})
	return slices.ContainsFunc(hops, func(h *netlink.NexthopInfo) bool {
		to := h.Gw
		if via, ok := h.Via.(*netlink.Via); ok { // a gateway of the other family
			to = via.Addr
		}
		return h.LinkIndex == index && (gateway == nil || gateway.Equal(to))
	})
}

// ErrDuplicateAddress is wrapped if another host on the link answers for an IPv6 address (RFC 4862,
// duplicate address detection).
var ErrDuplicateAddress = errors.New("duplicate address")

// ErrNoCarrier is wrapped if duplicate address detection has not begun because the link has no
// carrier.
var ErrNoCarrier = errors.New("no carrier")

// dadPoll is the longest pause between two reads of a tentative address. The detection takes about
// a second.
const dadPoll = 10 * time.Millisecond

// AwaitDAD waits until duplicate address detection has finished for every IPv6
// address of the link, or ctx ends. It returns an error that wraps
// [ErrDuplicateAddress] if another host uses an address.
//
// Without a carrier the kernel does not begin the detection. A NIC that just came up has no carrier
// for a moment, so AwaitDAD waits for the carrier. If ctx ends and the link still has no carrier,
// AwaitDAD returns an error that wraps [ErrNoCarrier].
func AwaitDAD(ctx context.Context, n *netns.Netns, index int) error {
	var tentative *net.IPNet
	err := wait.Until(ctx, dadPoll, func() (bool, error) {
		var err error
		tentative, err = Tentative(n, index)
		return tentative == nil, err
	})
	if tentative == nil || err == nil {
		return err
	}
	l, gone := ByIndex(n, index)
	if gone != nil {
		return gone
	}
	if !l.HasCarrier() {
		return fmt.Errorf("%w: address %s is not checked", ErrNoCarrier, tentative)
	}
	return fmt.Errorf("duplicate address detection of %s has not finished: %w", tentative, err)
}

// Tentative returns an IPv6 address of the link that is not usable yet, or nil if there is none. It
// returns an error that wraps [ErrDuplicateAddress] if another host uses an address of the link.
func Tentative(n *netns.Netns, index int) (*net.IPNet, error) {
	addrs, err := ListAddresses(n, index)
	if err != nil {
		return nil, err
	}
	var tentative *net.IPNet
	for _, a := range addrs {
		if a.IP.To4() != nil {
			continue
		}
		if a.Flags&unix.IFA_F_DADFAILED != 0 {
			return nil, fmt.Errorf("%w: another host on the link uses %s", ErrDuplicateAddress, a.IPNet)
		}
		// An optimistic address may be used while the kernel checks it. Only the kernel uses the
		// link-local address.
		if a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 && !a.IP.IsLinkLocalUnicast() {
			tentative = a.IPNet
		}
	}
	return tentative, nil
}

// RouteTo returns the index of the link by which the namespace's route to ip leaves. It returns 0
// if there is no route.
func RouteTo(n *netns.Netns, ip netip.Addr) (int, error) {
	routes, err := n.Handle().RouteGet(ip.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("route to %s in netns %s: %w", ip, n.Path, err)
	case len(routes) == 0:
		return 0, nil
	}
	return routes[0].LinkIndex, nil
}
