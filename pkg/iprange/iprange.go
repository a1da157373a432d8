package iprange

import (
	"net"
	"net/netip"
)

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

// ParseBlock returns the block of a CIDR or of a single address, without leading
// zeros, and reports whether the text is one.
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

// AddrOf converts ip, and an IPv4-mapped address to IPv4. For nil it returns
// the zero Addr.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
