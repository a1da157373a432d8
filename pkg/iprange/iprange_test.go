package iprange_test

import (
	"net/netip"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/iprange"
)

func TestLastAddressOfAPrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.0.0.0/22": "10.0.3.255", "10.0.1.7/22": "10.0.3.255", "10.0.0.7/32": "10.0.0.7", "0.0.0.0/0": "255.255.255.255", "fd00::/63": "fd00::1:ffff:ffff:ffff:ffff",
	} {
		if got := iprange.Last(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"10.0.0.0/24", "10.0.1.0/24", false},
		{"10.0.0.0/23", "10.0.1.0/24", true},
		{"10.0.1.0/24", "10.0.0.0/16", true},
		{"10.0.1.255/32", "10.0.1.0/24", true},
		{"0.0.0.0/0", "::/0", false},
	} {
		a, b := iprange.OfPrefix(netip.MustParsePrefix(c.a)), iprange.OfPrefix(netip.MustParsePrefix(c.b))
		if a.Overlaps(b) != c.want || b.Overlaps(a) != c.want {
			t.Errorf("%s and %s: %v and %v, want %v", c.a, c.b, a.Overlaps(b), b.Overlaps(a), c.want)
		}
	}
}
