package iprange

import "net/netip"

// Range has the addresses from First to Last, both included.
type Range struct{ First, Last netip.Addr }

// OfPrefix returns all addresses of a prefix.
func OfPrefix(p netip.Prefix) Range { return Range{p.Masked().Addr(), Last(p)} }

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes) // as long as an address
	return last
}

// Overlaps reports whether the ranges share an address.
func (r Range) Overlaps(other Range) bool {
	return r.First.BitLen() == other.First.BitLen() && r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}
