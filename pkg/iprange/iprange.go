package iprange

import (
	"net"
	"net/netip"
)

// Range has the addresses from First to Last, both included.
type Range struct{ First, Last netip.Addr }

// OfPrefix returns the range of all addresses of a prefix.
func OfPrefix(p netip.Prefix) Range { return Range{p.Masked().Addr(), Last(p)} }

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes) // bytes is as long as an address
	return last
}

// Overlaps reports whether the two ranges have an address in common.
func (r Range) Overlaps(other Range) bool {
	return r.First.BitLen() == other.First.BitLen() && r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}

// ParseBlock parses a CIDR or a single address, without leading zeros. It returns the block
// of addresses, or false if the text is neither.
func ParseBlock(text string) (netip.Prefix, bool) {
	if _, n, err := net.ParseCIDR(text); err == nil {
		addr := AddrOf(n.IP)
		ones, bits := n.Mask.Size()
		return netip.PrefixFrom(addr, ones-(bits-addr.BitLen())), true
	}
	addr := AddrOf(net.ParseIP(text))
	if !addr.IsValid() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// AddrOf converts ip to a netip.Addr. It converts an IPv4-mapped address to IPv4, and nil
// to the zero Addr.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
