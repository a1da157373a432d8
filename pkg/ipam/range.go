package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/iprange"
)

// RangeSpec is a range as configured.
type RangeSpec struct {
	// Prefix is the whole network, IPv4 or IPv6, masked.
	Prefix netip.Prefix
	// Start and End bound the assigned addresses, inclusively. A bound that is
	// invalid, of the other family, or outside the usable addresses is ignored,
	// and so is an end before the start.
	Start, End netip.Addr
	// Exclude lists blocks that are never assigned.
	Exclude []netip.Prefix
	// ExcludeText is Exclude in the user's own form, for messages.
	ExcludeText []string
	// Avoid lists the addresses of gateways, which are not assigned either.
	Avoid []netip.Addr
	// Small permits networks of one or two addresses, of which all are usable (RFC 3021,
	// RFC 6164).
	Small bool
}

// Range is a set of addresses from which an address is chosen.
type Range struct {
	prefix      netip.Prefix
	first, last netip.Addr
	closed      []block // sorted, disjoint, never adjacent
	spec        RangeSpec
}

// block is a run of addresses, both ends included.
type block struct{ lo, hi netip.Addr }

// TooSmallError is the error of a network that has no address to assign. whereabouts
// reserves the first and the last address of every network, also in IPv6. See
// [RangeSpec.Small].
type TooSmallError struct{ Prefix netip.Prefix }

func (e *TooSmallError) Error() string {
	return fmt.Sprintf("net mask is too short, subnet %s has no usable IP addresses, it is too small", e.Prefix)
}

// ExhaustedError is the error of a range whose addresses are all taken. Its
// text is whereabouts' own, because users' alerts match it.
type ExhaustedError struct {
	First, Last netip.Addr
	Prefix      netip.Prefix
	Exclude     []string // in the user's own form
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("Could not allocate IP in range: ip: %s / - %s / range: %s / excludeRanges: [%s]",
		e.First, e.Last, e.Prefix, strings.Join(e.Exclude, " "))
}

// NewRange returns the range of spec. Its only error is a *[TooSmallError], of
// kind InvalidConfig.
func NewRange(spec RangeSpec) (*Range, error) {
	prefix := spec.Prefix.Masked()
	small := prefix.IsValid() && prefix.Addr().BitLen()-prefix.Bits() < 2
	if !prefix.IsValid() || small && !spec.Small {
		return nil, failure.From(&TooSmallError{Prefix: spec.Prefix}, failure.InvalidConfig, "").Cure("use a network with at least two host bits")
	}
	r := &Range{
		prefix: prefix,
		first:  prefix.Addr().Next(),
		last:   iprange.Last(prefix).Prev(),
		spec:   spec,
	}
	if small {
		r.first, r.last = prefix.Addr(), iprange.Last(prefix)
	}
	if r.inBounds(spec.Start) {
		r.first = spec.Start
	}
	if r.inBounds(spec.End) {
		r.last = spec.End
	}
	for _, e := range spec.Exclude {
		r.closed = append(r.closed, block{e.Masked().Addr(), iprange.Last(e)})
	}
	for _, a := range spec.Avoid {
		r.closed = append(r.closed, block{a, a})
	}
	r.closed = merge(r.closed)
	return r, nil
}

// Within returns the part of the range that lies in the blocks. The blocks must not
// overlap. The part has the mask of the whole range. Within returns false if the part has
// no address that can be assigned.
func (r *Range) Within(blocks []netip.Prefix) (*Range, bool) {
	if len(blocks) == 0 {
		return nil, false
	}
	blocks = slices.SortedFunc(slices.Values(blocks), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	part := *r
	if first := blocks[0].Masked().Addr(); part.first.Less(first) {
		part.first = first
	}
	if last := iprange.Last(blocks[len(blocks)-1]); last.Less(part.last) {
		part.last = last
	}
	part.closed = slices.Clone(r.closed)
	for i, b := range blocks[1:] {
		if from, to := iprange.Last(blocks[i]).Next(), b.Masked().Addr().Prev(); !to.Less(from) {
			part.closed = append(part.closed, block{from, to})
		}
	}
	part.closed = merge(part.closed)
	_, some := part.Next(part.first)
	return &part, some
}

// Part returns the part of the range that lies in slice, which must be a part of the
// range's network. The bounds of the range still apply. Part returns a *[TooSmallError] if
// slice is too small, and an error of kind IPAM if the part is empty.
func (r *Range) Part(slice netip.Prefix) (*Range, error) {
	spec := r.spec
	spec.Prefix, spec.Start, spec.End = slice, netip.Addr{}, netip.Addr{}
	part, err := NewRange(spec)
	if err != nil {
		return nil, err
	}
	if part.first.Less(r.first) {
		part.first = r.first
	}
	if r.last.Less(part.last) {
		part.last = r.last
	}
	if part.last.Less(part.first) {
		return nil, failure.New(failure.IPAM, "no address of the slice %s lies between %s and %s", slice, r.first, r.last).
			Cure("widen range_start and range_end, or give them the range that is divided into slices")
	}
	// With these bounds, another process makes the same range from Spec.
	part.spec.Start, part.spec.End = part.first, part.last
	return part, nil
}

// Prefix returns the network. Its length is the mask of every address in it.
func (r *Range) Prefix() netip.Prefix { return r.prefix }

// Spec returns a specification of the range. Another process can make the range from it.
func (r *Range) Spec() RangeSpec { return r.spec }

// First returns the lower bound. It is usable unless it is excluded.
func (r *Range) First() netip.Addr { return r.first }

// Last returns the upper bound. It is usable unless it is excluded.
func (r *Range) Last() netip.Addr { return r.last }

// Exhausted returns the error for a range without a free address.
func (r *Range) Exhausted() *ExhaustedError {
	return &ExhaustedError{First: r.first, Last: r.last, Prefix: r.prefix, Exclude: r.spec.ExcludeText}
}

// Next returns the lowest address of the range that is not excluded and not below from. It
// returns false if there is none. It costs a binary search in the excluded blocks.
func (r *Range) Next(from netip.Addr) (netip.Addr, bool) {
	if from.Less(r.first) { // the invalid address is less than all others
		from = r.first
	}
	if b, closed := r.blockOf(from); closed {
		from = b.hi.Next() // invalid after the last address of the family
	}
	if !from.IsValid() || from.Compare(r.last) > 0 {
		return netip.Addr{}, false
	}
	return from, true
}

// Why returns the reason why the range does not assign addr, or "" if it does.
func (r *Range) Why(addr netip.Addr) string {
	switch {
	case !r.prefix.Contains(addr):
		return fmt.Sprintf("it is not in %s", r.prefix)
	case slices.Contains(r.spec.Avoid, addr):
		return "it is a gateway"
	case !r.inBounds(addr):
		return fmt.Sprintf("it is not between %s and %s", r.first, r.last)
	}
	if _, closed := r.blockOf(addr); closed {
		return "it is excluded"
	}
	return ""
}

// inBounds reports whether a lies between the bounds. An address of the other family never
// does, because every IPv4 address is less than every IPv6 address.
func (r *Range) inBounds(a netip.Addr) bool { return !a.Less(r.first) && !r.last.Less(a) }

func (r *Range) blockOf(a netip.Addr) (block, bool) {
	i, exact := slices.BinarySearchFunc(r.closed, a, func(b block, a netip.Addr) int { return b.lo.Compare(a) })
	if !exact {
		i-- // the last block that begins before a
	}
	if i < 0 || r.closed[i].hi.Compare(a) < 0 {
		return block{}, false
	}
	return r.closed[i], true
}

// merge sorts blocks and joins those that overlap or touch, so that no block
// ends inside another.
func merge(blocks []block) []block {
	slices.SortFunc(blocks, func(a, b block) int {
		return cmp.Or(a.lo.Compare(b.lo), a.hi.Compare(b.hi))
	})
	var merged []block
	for _, b := range blocks {
		if n := len(merged); n > 0 {
			last := &merged[n-1]
			touches := b.lo.Compare(last.hi) <= 0 || last.hi.Next() == b.lo
			if touches && b.lo.BitLen() == last.hi.BitLen() {
				if last.hi.Less(b.hi) {
					last.hi = b.hi
				}
				continue
			}
		}
		merged = append(merged, b)
	}
	return merged
}
