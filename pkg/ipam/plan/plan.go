package plan

import (
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// Slice is a node's part of a network's range. The zero Slice is the whole
// range.
type Slice struct {
	Node   string
	Prefix netip.Prefix // masked
}

// SlicePool returns the name of the NodeSlicePool that holds a network's slices, and
// reports whether the network uses node slices.
func SlicePool(conf *ipamconf.Whereabouts) (name string, ok bool) {
	name = conf.NetworkName
	if name == "" {
		name = conf.Name
	}
	return name, conf.NodeSliceSize != 0
}

// Within reports whether the slice is a part of a range.
func (s Slice) Within(whole netip.Prefix) bool {
	return whole.Contains(s.Prefix.Addr()) && s.Prefix.Bits() >= whole.Bits()
}

// Pools returns the pools of a network's ranges, in the order of the ranges.
func Pools(conf *ipamconf.Whereabouts, slice Slice) []ipam.Pool {
	pools := make([]ipam.Pool, 0, len(conf.Ranges))
	for _, r := range conf.Ranges {
		p := ipam.Pool{Space: conf.NetworkName, Prefix: r.Prefix}
		if slice.Prefix.IsValid() {
			p.Node, p.Prefix = slice.Node, slice.Prefix
		}
		pools = append(pools, p)
	}
	return pools
}

// Claims returns the claims of an ADD: one address from each range, in the
// order of the ranges. If a range is unusable it returns the claims of the
// ranges before it, and an error.
func Claims(conf *ipamconf.Whereabouts, slice Slice) ([]ipam.Claim, error) {
	if err := ipam.CheckSpace(conf.NetworkName); err != nil {
		return nil, err
	}
	claims := make([]ipam.Claim, 0, len(conf.Ranges))
	for i, pool := range Pools(conf, slice) {
		r := onAllRails(conf.Ranges[i], conf.SameHost)
		rng, err := ipam.NewRange(ipam.RangeSpec{
			Prefix: r.Prefix, Start: r.Start, End: r.End,
			Exclude: r.Exclude, ExcludeText: r.ExcludeText, Avoid: avoid(conf, r.Prefix), Small: conf.NodePrefix,
		})
		if err == nil && slice.Prefix.IsValid() {
			rng, err = rng.Part(slice.Prefix)
		}
		if err != nil {
			return claims, err
		}
		claims = append(claims, ipam.Claim{Pool: pool, Range: rng, Exclusive: conf.Overlapping, Rotate: conf.Rotate, SameHost: conf.SameHost})
	}
	return claims, assignRequested(conf, claims)
}

// onAllRails returns the range r of one rail. It moves into r the bounds and exclusions
// that lie in the networks of other rails, as they do if they are written without ${rail}.
// So the same host parts are free on all rails.
func onAllRails(r ipamconf.WhereaboutsRange, rails []netip.Prefix) ipamconf.WhereaboutsRange {
	r.Exclude = slices.Clone(r.Exclude)
	for _, rail := range rails {
		if rail == r.Prefix {
			continue
		}
		for _, bound := range []*netip.Addr{&r.Start, &r.End} {
			if rail.Contains(*bound) {
				*bound = ipam.Move(*bound, r.Prefix)
			}
		}
		for _, e := range r.Exclude {
			if e.Overlaps(rail) {
				r.Exclude = append(r.Exclude, ipam.MovePrefix(e, r.Prefix))
			}
		}
	}
	return r
}

// avoid returns the addresses of gateways that must not be assigned. With sameHost, a
// gateway on another rail excludes its host part on all rails, so that all rails have the
// same free host parts.
func avoid(conf *ipamconf.Whereabouts, prefix netip.Prefix) []netip.Addr {
	gateways := conf.Gateways()
	for _, gw := range gateways {
		for _, rail := range conf.SameHost {
			if rail != prefix && rail.Contains(gw) {
				gateways = append(gateways, ipam.Move(gw, prefix))
			}
		}
	}
	return gateways
}

// assignRequested sets each requested address in the claim of its range.
func assignRequested(conf *ipamconf.Whereabouts, claims []ipam.Claim) error {
next:
	for _, want := range conf.Requested {
		for i := range claims {
			if !conf.Ranges[i].Prefix.Contains(want) {
				continue
			}
			if other := claims[i].Want; other.IsValid() {
				return failure.New(failure.InvalidConfig, "the requested addresses %s and %s are in the same range, from which an interface gets only one address",
					other, want).
					Cure("ask for only one of the two")
			}
			claims[i].Want = want
			continue next
		}
		return failure.New(failure.InvalidConfig, "the requested address %s is in no range of network %s", want, conf.Name).
			Cure("ask for an address of a configured range")
	}
	return nil
}
