package ipam

import (
	"net/netip"
	"testing"
)

func TestMoveKeepsTheHostPart(t *testing.T) {
	for _, tc := range []struct{ addr, to, want string }{
		{"10.0.0.17", "10.3.0.0/16", "10.3.0.17"},
		{"10.0.255.255", "10.3.0.0/16", "10.3.255.255"},
		{"10.0.0.200", "10.3.0.0/25", "10.3.0.72"},
		{"10.1.2.3", "10.9.9.8/31", "10.9.9.9"},
		{"10.1.2.3", "10.9.9.8/32", "10.9.9.8"},
		{"1.2.3.4", "0.0.0.0/0", "1.2.3.4"},
		{"fd00:1::a:b", "fd00:2::/64", "fd00:2::a:b"},
		{"fd00:1::a:b", "::/64", "::a:b"},
	} {
		if got := Move(addr(tc.addr), netip.MustParsePrefix(tc.to)); got.String() != tc.want {
			t.Errorf("%s to %s: %s, want %s", tc.addr, tc.to, got, tc.want)
		}
	}
	for _, tc := range []struct{ prefix, to, want string }{
		{"10.0.0.16/28", "10.3.0.0/16", "10.3.0.16/28"},
		{"10.0.0.0/8", "10.3.0.0/16", "10.3.0.0/16"},
	} {
		if got := MovePrefix(netip.MustParsePrefix(tc.prefix), netip.MustParsePrefix(tc.to)); got.String() != tc.want {
			t.Errorf("%s to %s: %s, want %s", tc.prefix, tc.to, got, tc.want)
		}
	}
}

func TestMovedRangeAssignsTheSameHostParts(t *testing.T) {
	for _, spec := range []RangeSpec{
		{Prefix: netip.MustParsePrefix("10.0.0.0/24")},
		{
			Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: addr("10.0.0.5"), End: addr("10.0.0.90"),
			Exclude: prefixes("10.0.0.8/29", "10.9.0.0/24", "10.0.0.64/26"), Avoid: []netip.Addr{addr("10.0.0.6"), addr("10.9.0.7")},
		},
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("10.0.0.0/8")},
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("10.9.0.0/24")},
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("9.9.0.0/24", "10.0.0.8/29")},
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("fd00::/64")},
		{Prefix: netip.MustParsePrefix("10.0.0.0/31"), Small: true, Avoid: []netip.Addr{addr("10.0.0.0")}},
	} {
		to := netip.PrefixFrom(addr("0.0.0.0"), spec.Prefix.Bits())
		r := newRange(t, spec)
		moved := r.Moved(to)
		again := newRange(t, moved.Spec()) // as in another process
		for a := spec.Prefix.Addr(); spec.Prefix.Contains(a); a = a.Next() {
			there := Move(a, to)
			if (r.Why(a) == "") != (moved.Why(there) == "") || (r.Why(a) == "") != (again.Why(there) == "") {
				t.Errorf("%+v: %s: %q, moved %q, again %q", spec, a, r.Why(a), moved.Why(there), again.Why(there))
			}
		}
		back := moved.Moved(spec.Prefix)
		if back.First() != r.First() || back.Last() != r.Last() {
			t.Errorf("%+v came back as %s-%s", spec, back.First(), back.Last())
		}
	}
}

func TestSmallNetworks(t *testing.T) {
	for _, tc := range []struct {
		prefix, avoid string
		want          string // all addresses
	}{
		{"10.0.0.0/31", "10.0.0.0", "10.0.0.1 "},
		{"10.0.0.0/31", "10.0.0.1", "10.0.0.0 "},
		{"10.0.0.0/31", "", "10.0.0.0 10.0.0.1 "},
		{"10.0.0.7/32", "", "10.0.0.7 "},
		{"fd00::/127", "fd00::", "fd00::1 "},
		{"fd00::5/128", "", "fd00::5 "},
		{"255.255.255.254/31", "", "255.255.255.254 255.255.255.255 "},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.2 "}, // as without Small
	} {
		spec := RangeSpec{Prefix: netip.MustParsePrefix(tc.prefix), Small: true}
		if tc.avoid != "" {
			spec.Avoid = []netip.Addr{addr(tc.avoid)}
		}
		r, got, taken := newRange(t, spec), "", &Set{}
		for a, ok := r.Next(r.First()); ok; a, ok = r.Next(a.Next()) {
			taken.Add(a)
			got += a.String() + " "
			if !a.Next().IsValid() {
				break
			}
		}
		if got != tc.want {
			t.Errorf("%s without %q: %q, want %q", tc.prefix, tc.avoid, got, tc.want)
		}
		if a, err := Choose(r, taken); err == nil {
			t.Errorf("%s without %q: all are taken, and %s is chosen", tc.prefix, tc.avoid, a)
		}
		if spec.Small = false; spec.Prefix.Addr().BitLen()-spec.Prefix.Bits() < 2 {
			if _, err := NewRange(spec); err == nil {
				t.Errorf("%s without Small is a range", tc.prefix)
			}
		}
	}
}

func TestHostPoolsHaveNamesThatKubernetesTakes(t *testing.T) {
	for prefix, want := range map[string]string{"10.1.0.0/16": "rail-cni-host-0.0.0.0-16", "fd00:1::/64": "rail-cni-host----64"} {
		p := HostPool(Pool{Prefix: netip.MustParsePrefix(prefix)})
		if p.Name() != want || !subdomain(p.Name()) {
			t.Errorf("%s: %s", prefix, p.Name())
		}
		if p := HostPool(Pool{Space: "blue", Prefix: netip.MustParsePrefix(prefix)}); p.Name() != "blue-"+want {
			t.Errorf("%s: %s", prefix, p.Name())
		}
	}
}
