package ipamconf

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/iprange"
)

// readRanges reads the plain "range" and all "ipRanges". The plain "range" comes first.
func (c *Whereabouts) readRanges(ipam *whereaboutsIPAM) error {
	if ipam.Range != "" {
		r, err := readRange(ipam.Range, ipam.RangeStart.addr, ipam.RangeEnd.addr, ipam.Exclude)
		if err != nil {
			return err
		}
		c.Ranges = append(c.Ranges, r)
	}
	for _, b := range ipam.IPRanges {
		r, err := readRange(b.Range, iprange.AddrOf(b.RangeStart), iprange.AddrOf(b.RangeEnd), b.Exclude)
		if err != nil {
			return err
		}
		c.Ranges = append(c.Ranges, r)
	}
	for i, r := range c.Ranges {
		for _, earlier := range c.Ranges[:i] {
			if earlier.Prefix == r.Prefix {
				// Both would give the attachment the same address.
				return failure.New(failure.InvalidConfig, "two ranges lie in the pool %s, and an interface holds one address of a pool", r.Prefix).
					Cure("name each network once")
			}
		}
	}
	return nil
}

// readRange reads a range of the form "network/len" or "start-end/len". A range of the second form
// includes its bounds.
func readRange(text string, start, end netip.Addr, exclude []string) (WhereaboutsRange, error) {
	r := WhereaboutsRange{Start: start, End: end, ExcludeText: exclude}
	cidr := text
	if first, rest, dashed := strings.Cut(text, "-"); dashed {
		cidr = rest
		from, ok := sloppyAddr(first)
		if !ok {
			return r, failure.New(failure.InvalidConfig, "invalid range start IP: %s", first).Cure(`write the range as "start-end/length", without blanks`)
		}
		r.Start = from
	}
	p, ok := sloppyPrefix(cidr)
	if !ok {
		return r, failure.New(failure.InvalidConfig, "invalid CIDR %s", text).Cure(`write the range as "network/length" or "start-end/length"`)
	}
	r.Prefix = p.Masked()
	if cidr != text {
		if !r.Prefix.Contains(r.Start) {
			return r, failure.New(failure.InvalidConfig, "invalid range start for CIDR %s: %s", r.Prefix, r.Start).
				Cure("choose a start in the network of end/length")
		}
		r.End = p.Addr()
	}
	for _, e := range exclude {
		block, ok := iprange.ParseBlock(e)
		if !ok {
			return r, failure.New(failure.InvalidConfig, "could not parse exclude range %q of %s", e, text).
				Cure("give a CIDR or a single address, without leading zeros")
		}
		r.Exclude = append(r.Exclude, block)
	}
	return r, nil
}

// sloppyIP is a bound of a range. A value that is not an address is ignored.
type sloppyIP struct{ addr netip.Addr }

func (s *sloppyIP) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	s.addr, _ = sloppyAddr(text)
	return nil
}

// sloppyAddr reads an address in which numbers may have leading zeros, because old configs have
// them. The numbers are always decimal. An IPv4-mapped address becomes an IPv4 address.
func sloppyAddr(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(dropLeadingZeros(text))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// sloppyPrefix reads address/length, with the same rules as [sloppyAddr]. It keeps the host bits.
func sloppyPrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(dropLeadingZeros(text))
	if err != nil {
		return netip.Prefix{}, false
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p, true
}

// dropLeadingZeros removes every leading zero of a number, except the last digit of the number.
func dropLeadingZeros(s string) string {
	var b strings.Builder
	atStart := true
	for i := range len(s) {
		if atStart && s[i] == '0' && i+1 < len(s) && isHex(s[i+1]) {
			continue
		}
		b.WriteByte(s[i])
		atStart = !isHex(s[i])
	}
	return b.String()
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
