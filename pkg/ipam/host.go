package ipam

import (
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/iprange"
)

// HostNode takes the place of the node in the name of a [HostPool].
const HostNode = "rail-cni-host"

// HostPool returns the pool of the host parts of p's addresses. Its network has the same
// length as p's network, and begins with the first address of the family: 0.0.0.0/16, for
// example. If a node holds a block of this pool, it holds the corresponding block in each
// pool of the same address space that has a network of the same length and sameHost.
func HostPool(p Pool) Pool {
	zero := netip.IPv4Unspecified()
	if p.Prefix.Addr().Is6() {
		zero = netip.IPv6Unspecified()
	}
	return Pool{Space: p.Space, Node: HostNode, Prefix: netip.PrefixFrom(zero, p.Prefix.Bits())}
}

// Move returns the address that is in the network to and has the same host part as addr.
// The network to must be masked, and have the family and the length of addr's network.
func Move(addr netip.Addr, to netip.Prefix) netip.Addr {
	host, network := addr.AsSlice(), to.Addr().AsSlice()
	for bit := range to.Bits() {
		mask := byte(0x80 >> (bit % 8))
		host[bit/8] = host[bit/8]&^mask | network[bit/8]&mask
	}
	moved, _ := netip.AddrFromSlice(host)
	return moved
}

// MovePrefix returns the part of the network to that corresponds to p, a part of another
// network of the same length. If p is larger than to, MovePrefix returns to.
func MovePrefix(p, to netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(Move(p.Masked().Addr(), to), max(p.Bits(), to.Bits()))
}

// Moved returns the range with the same host parts in the network to. It leaves out
// exclusions that are outside of r's network.
func (r *Range) Moved(to netip.Prefix) *Range {
	moved := &Range{prefix: to, first: Move(r.first, to), last: Move(r.last, to), spec: r.spec}
	lowest, highest := r.prefix.Addr(), iprange.Last(r.prefix)
	for _, b := range r.closed {
		if b.lo.BitLen() != lowest.BitLen() || b.hi.Less(lowest) || highest.Less(b.lo) {
			continue
		}
		if b.lo.Less(lowest) {
			b.lo = lowest
		}
		if highest.Less(b.hi) {
			b.hi = highest
		}
		moved.closed = append(moved.closed, block{Move(b.lo, to), Move(b.hi, to)})
	}
	inside := func(a netip.Addr) bool { return r.prefix.Contains(a) }
	moved.spec.Prefix, moved.spec.Exclude, moved.spec.Avoid = to, nil, nil
	for _, bound := range []*netip.Addr{&moved.spec.Start, &moved.spec.End} {
		if inside(*bound) {
			*bound = Move(*bound, to)
		}
	}
	for _, e := range r.spec.Exclude {
		if e.Overlaps(r.prefix) {
			moved.spec.Exclude = append(moved.spec.Exclude, MovePrefix(e, to))
		}
	}
	for _, a := range r.spec.Avoid {
		if inside(a) {
			moved.spec.Avoid = append(moved.spec.Avoid, Move(a, to))
		}
	}
	return moved
}

// OnRails returns the pools of all rails of the node, including the claim's own pool. It
// returns none for a claim without SameHost.
func (c *Claim) OnRails() []Pool {
	var pools []Pool
	for _, p := range c.SameHost {
		pools = append(pools, Pool{Space: c.Pool.Space, Prefix: p})
	}
	return pools
}

// HostTaken returns the error of an ADD that cannot get addr. The ADD needs addr because
// addr has the host part that the container has on its other rails. The error wraps why.
func HostTaken(addr netip.Addr, why error) error {
	return failure.From(why, failure.TryAgain, "%s, which has the host part of the pod's other rails, is not free on this rail", addr).
		Cure("wait for the pod's next sandbox, which gets another host part; if the error repeats, add the address to \"exclude\"")
}

// WantsOtherHost returns the error of an ADD that requests want, although its container has
// another host part on its other rails. host is the address on this rail that has that host
// part.
func WantsOtherHost(owner Owner, want, host netip.Addr) error {
	return failure.New(failure.IPAM, "%s asks for %s, but its addresses on the other rails have the host part of %s", owner.PodRef, want, host).
		Cure("ask for addresses with the same host part on all rails")
}

// SecondOnRail returns the error of a container's second interface on one rail.
func SecondOnRail(owner Owner, ifName string, addr netip.Addr) error {
	return failure.New(failure.InvalidConfig, "%s of %s is on the same rail as %s, which has %s: with sameHost a pod has one address on each rail",
		owner.IfName, owner.PodRef, ifName, addr).
		Cure("give the pod one interface for each rail, or remove sameHost from the second interface's network")
}
