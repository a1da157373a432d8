package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func newRange(t testing.TB, spec RangeSpec) *Range {
	t.Helper()
	r, err := NewRange(spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRangeBounds(t *testing.T) {
	for _, tc := range []struct{ prefix, start, end, first, last string }{
		{"10.0.0.0/24", "", "", "10.0.0.1", "10.0.0.254"},
		{"10.0.0.0/30", "", "", "10.0.0.1", "10.0.0.2"},
		{"10.0.0.0/16", "", "", "10.0.0.1", "10.0.255.254"},
		{"0.0.0.0/0", "", "", "0.0.0.1", "255.255.255.254"},
		{"2001:db8::/64", "", "", "2001:db8::1", "2001:db8::ffff:ffff:ffff:fffe"},
		{"::/0", "", "", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"},
		{"10.0.0.0/24", "10.0.0.5", "10.0.0.9", "10.0.0.5", "10.0.0.9"},
		{"10.0.0.0/24", "10.0.0.5", "10.0.0.5", "10.0.0.5", "10.0.0.5"},
		{"10.0.0.0/24", "10.0.0.0", "10.0.0.255", "10.0.0.1", "10.0.0.254"}, // not usable: ignored
		{"10.0.0.0/24", "10.0.0.9", "10.0.0.5", "10.0.0.9", "10.0.0.254"},   // end before start: ignored
		{"10.0.0.0/24", "10.0.1.5", "2001:db8::5", "10.0.0.1", "10.0.0.254"},
		{"2001:db8::/64", "10.0.0.5", "2001:db8::5", "2001:db8::1", "2001:db8::5"},
	} {
		r := newRange(t, RangeSpec{Prefix: netip.MustParsePrefix(tc.prefix), Start: addr(tc.start), End: addr(tc.end)})
		if r.First() != addr(tc.first) || r.Last() != addr(tc.last) {
			t.Errorf("%s %s %s: %s - %s, want %s - %s", tc.prefix, tc.start, tc.end, r.First(), r.Last(), tc.first, tc.last)
		}
	}
}

func TestBoundsHoldInEachSliceOfTheNetwork(t *testing.T) {
	for _, tc := range []struct{ slice, start, end, first, last string }{
		{"10.0.0.0/28", "", "", "10.0.0.1", "10.0.0.14"},
		{"10.0.0.96/28", "10.0.0.100", "10.0.0.200", "10.0.0.100", "10.0.0.110"},
		{"10.0.0.112/28", "10.0.0.100", "10.0.0.200", "10.0.0.113", "10.0.0.126"}, // both bounds lie outside
		{"10.0.0.192/28", "10.0.0.100", "10.0.0.200", "10.0.0.193", "10.0.0.200"},
		{"10.0.0.0/28", "10.0.0.100", "10.0.0.200", "", ""},
		{"10.0.0.208/28", "10.0.0.100", "10.0.0.200", "", ""},
		{"10.0.0.96/28", "10.0.0.111", "", "", ""},                                // the last one, which no slice assigns
		{"10.0.0.0/28", "10.0.0.200", "10.0.0.100", "", ""},                       // end before start: ignored
		{"10.0.0.208/28", "10.0.0.200", "10.0.0.100", "10.0.0.209", "10.0.0.222"}, // likewise
		{"10.0.0.0/28", "10.0.9.1", "2001:db8::5", "10.0.0.1", "10.0.0.14"},       // bounds outside of the network
		{"10.0.0.0/24", "10.0.0.100", "10.0.0.200", "10.0.0.100", "10.0.0.200"},   // one slice
		{"10.0.0.128/25", "10.0.0.128", "10.0.0.255", "10.0.0.129", "10.0.0.254"}, // not usable in the slice
		{"10.0.0.128/25", "10.0.0.127", "10.0.0.129", "10.0.0.129", "10.0.0.129"}, // one address
	} {
		whole := newRange(t, RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: addr(tc.start), End: addr(tc.end), Exclude: prefixes("10.0.0.114/32")})
		r, err := whole.Part(netip.MustParsePrefix(tc.slice))
		if tc.first == "" {
			if failure.KindOf(err) != failure.IPAM {
				t.Errorf("%+v: %v, %v", tc, r, err)
			}
			continue
		}
		if err != nil || r.First() != addr(tc.first) || r.Last() != addr(tc.last) {
			t.Errorf("%+v: %+v, %v", tc, r, err)
			continue
		}
		again := newRange(t, r.Spec()) // as another process does
		if again.First() != r.First() || again.Last() != r.Last() || again.Prefix() != r.Prefix() || r.Prefix() != netip.MustParsePrefix(tc.slice) {
			t.Errorf("%+v: %+v, of its spec %+v", tc, r, again)
		}
		if r.Why(r.First()) != "" || r.Why(addr("10.0.0.114")) == "" {
			t.Errorf("%+v: %q, %q", tc, r.Why(r.First()), r.Why(addr("10.0.0.114")))
		}
	}
	var small *TooSmallError
	if _, err := newRange(t, RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24")}).Part(netip.MustParsePrefix("10.0.0.2/31")); !errors.As(err, &small) {
		t.Errorf("a slice of two addresses: %v", err)
	}
}

func TestNetworksWithoutUsableAddresses(t *testing.T) {
	for _, p := range prefixes("10.0.0.0/31", "10.0.0.0/32", "2001:db8::/127", "2001:db8::1/128") {
		_, err := NewRange(RangeSpec{Prefix: p})
		var small *TooSmallError
		if !errors.As(err, &small) || failure.KindOf(err) != failure.InvalidConfig || !strings.HasSuffix(small.Error(), "subnet "+p.String()+" has no usable IP addresses, it is too small") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestChooseGivesTheLowestFreeAddress(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spec  RangeSpec
		taken []string
		want  string
	}{
		{"empty pool", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, nil, "10.0.0.1"},
		{"hole", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, []string{"10.0.0.1", "10.0.0.3"}, "10.0.0.2"},
		{"excluded block", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("10.0.0.0/28")}, nil, "10.0.0.16"},
		{"neighboring and nested blocks", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("10.0.0.16/28", "10.0.0.0/28", "10.0.0.4/30", "10.0.0.32/32")}, nil, "10.0.0.33"},
		{"block and its first address", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: addr("10.0.0.4"), Exclude: prefixes("10.0.0.4/30", "10.0.0.4/32")}, nil, "10.0.0.8"},
		{"foreign block", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Exclude: prefixes("2001:db8::/64", "192.168.0.0/16")}, nil, "10.0.0.1"},
		{"gateway", RangeSpec{Prefix: netip.MustParsePrefix("172.31.1.0/24"), Avoid: []netip.Addr{addr("172.31.1.1")}}, nil, "172.31.1.2"},
		{"network address inside", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Start: addr("10.0.0.255")}, []string{"10.0.0.255"}, "10.0.1.0"},
		{"next page", RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Start: addr("10.0.255.255")}, []string{"10.0.255.255"}, "10.1.0.0"},
		{"IPv6 past a huge block", RangeSpec{Prefix: netip.MustParsePrefix("2001:db8::/64"), Exclude: prefixes("2001:db8::/65")}, nil, "2001:db8:0:0:8000::"},
	} {
		var taken Set
		for _, a := range tc.taken {
			taken.Add(addr(a))
		}
		got, err := Choose(newRange(t, tc.spec), &taken)
		if err != nil || got != addr(tc.want) {
			t.Errorf("%s: %v, %v, want %s", tc.name, got, err, tc.want)
		}
	}
}

func TestChooseSaysExhaustedAsWhereaboutsDoes(t *testing.T) {
	for _, tc := range []struct {
		spec RangeSpec
		want string
	}{
		{
			RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/29"), Exclude: prefixes("10.0.0.0/30", "10.0.0.4/30"), ExcludeText: []string{"10.0.0.0/30", "10.0.0.5/30"}},
			"Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.6 / range: 10.0.0.0/29 / excludeRanges: [10.0.0.0/30 10.0.0.5/30]",
		},
		// The block reaches beyond the end, but the search stops there.
		{
			RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/24"), End: addr("10.0.0.20"), Exclude: prefixes("10.0.0.0/27")},
			"Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.20 / range: 10.0.0.0/24 / excludeRanges: []",
		},
		{
			RangeSpec{Prefix: netip.MustParsePrefix("255.255.255.0/24"), Exclude: prefixes("255.255.255.0/24")},
			"Could not allocate IP in range: ip: 255.255.255.1 / - 255.255.255.254 / range: 255.255.255.0/24 / excludeRanges: []",
		},
		{
			RangeSpec{Prefix: netip.MustParsePrefix("ffff::/16"), Exclude: prefixes("::/0")},
			"Could not allocate IP in range: ip: ffff::1 / - ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe / range: ffff::/16 / excludeRanges: []",
		},
	} {
		_, err := Choose(newRange(t, tc.spec), &Set{})
		var exhausted *ExhaustedError
		if !errors.As(err, &exhausted) || err.Error() != tc.want {
			t.Errorf("got  %v\nwant %s", err, tc.want)
		}
	}
	var full Set
	r := newRange(t, RangeSpec{Prefix: netip.MustParsePrefix("255.255.0.0/16")})
	for a := r.First(); a.Compare(r.Last()) <= 0; a = a.Next() {
		full.Add(a)
	}
	if a, err := Choose(r, &full); err == nil {
		t.Errorf("a full pool gave %s", a)
	}
}

// TestChooseAgreesWithACount compares with the definition: the first address of
// the range that is in no block, not a gateway and not taken.
func TestChooseAgreesWithACount(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		spec, taken := randomSpec(rnd)
		r := newRange(t, spec)
		var set Set
		for _, a := range taken {
			set.Add(a)
		}
		want := netip.Addr{}
	search:
		for a := r.First(); a.IsValid() && a.Compare(r.Last()) <= 0; a = a.Next() {
			for _, e := range spec.Exclude {
				if e.Contains(a) {
					continue search
				}
			}
			for _, g := range append(spec.Avoid, taken...) {
				if g == a {
					continue search
				}
			}
			want = a
			break
		}
		got, err := Choose(r, &set)
		if (err == nil) != want.IsValid() || got != want {
			t.Fatalf("%+v taken %v: got %v, %v, want %v", spec, taken, got, err, want)
		}
		if err == nil && r.Why(got) != "" {
			t.Fatalf("%+v chose %s although %s", spec, got, r.Why(got))
		}
	}
}

// randomSpec makes a small range with blocks, bounds and taken addresses in
// and around it.
func randomSpec(rnd *rand.Rand) (RangeSpec, []netip.Addr) {
	base := addr([]string{"10.0.255.0", "255.255.255.0", "0.0.0.0", "2001:db8::ff00", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"}[rnd.IntN(5)])
	bits := base.BitLen() - 2 - rnd.IntN(6)
	near := func() netip.Addr { return pageAddr(base, PageIndex(base)&0xff00|rnd.IntN(256)) }
	prefix, _ := near().Prefix(bits)
	spec := RangeSpec{Prefix: prefix}
	if rnd.IntN(2) == 0 {
		spec.Start = near()
	}
	if rnd.IntN(2) == 0 {
		spec.End = near()
	}
	for range rnd.IntN(5) {
		e, _ := near().Prefix(base.BitLen() - rnd.IntN(7))
		spec.Exclude = append(spec.Exclude, e)
	}
	if rnd.IntN(2) == 0 {
		spec.Avoid = append(spec.Avoid, near(), addr("192.0.2.1"))
	}
	var taken []netip.Addr
	for range rnd.IntN(40) {
		taken = append(taken, near())
	}
	return spec, taken
}

func TestWhySaysWhatIsWrongWithARequestedAddress(t *testing.T) {
	r := newRange(t, RangeSpec{
		Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: addr("10.0.0.10"), End: addr("10.0.0.20"),
		Exclude: prefixes("10.0.0.12/31"), Avoid: []netip.Addr{addr("10.0.0.14")},
	})
	for a, want := range map[string]string{
		"10.0.0.11": "", "10.0.0.20": "", "10.0.0.12": "it is excluded", "10.0.0.13": "it is excluded", "10.0.0.14": "it is a gateway",
		"10.0.0.9": "it is not between 10.0.0.10 and 10.0.0.20", "10.0.1.11": "it is not in 10.0.0.0/24", "2001:db8::1": "it is not in 10.0.0.0/24",
	} {
		if got := r.Why(addr(a)); got != want {
			t.Errorf("%s: %q, want %q", a, got, want)
		}
	}
}

func FuzzRange(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0}, byte(24), []byte{10, 0, 0, 5}, []byte{10, 0, 0, 9}, []byte{10, 0, 0, 4, 30, 10, 0, 0, 8, 32})
	f.Add([]byte{255, 255, 255, 255}, byte(0), []byte{}, []byte{255, 255, 255, 255}, []byte{255, 0, 0, 0, 8})
	f.Add(make([]byte, 16), byte(0), make([]byte, 16), make([]byte, 4), []byte{0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, base []byte, bits byte, start, end, blocks []byte) {
		a, ok := netip.AddrFromSlice(base)
		if !ok {
			return
		}
		prefix, err := a.Prefix(int(bits))
		if err != nil {
			return
		}
		spec := RangeSpec{Prefix: prefix}
		spec.Start, _ = netip.AddrFromSlice(start)
		spec.End, _ = netip.AddrFromSlice(end)
		for size := len(base) + 1; len(blocks) >= size; blocks = blocks[size:] {
			e, _ := netip.AddrFromSlice(blocks[:size-1])
			if p, err := e.Prefix(int(blocks[size-1])); err == nil {
				spec.Exclude = append(spec.Exclude, p)
			}
		}
		r, err := NewRange(spec)
		if err != nil {
			return
		}
		taken := &Set{}
		for range 3 {
			got, err := Choose(r, taken)
			if err != nil {
				return
			}
			if why := r.Why(got); why != "" || taken.Has(got) {
				t.Fatalf("%+v chose %s: %s", spec, got, why)
			}
			taken.Add(got)
		}
	})
}

func TestRangeWithinBlocksKeepsItsBoundsAndExclusions(t *testing.T) {
	r, err := NewRange(RangeSpec{
		Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: netip.MustParseAddr("10.0.0.3"), End: netip.MustParseAddr("10.0.0.37"),
		Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.0.32/30")}, Avoid: []netip.Addr{netip.MustParseAddr("10.0.0.5")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                          "",
		"10.0.0.0/29":               "3 4 6 7",
		"10.0.0.36/30 10.0.0.0/29":  "3 4 6 7 36 37",
		"10.0.0.4/30 10.0.0.8/30":   "4 6 7 8 9 10 11",
		"10.0.0.32/30":              "",
		"10.0.0.252/30":             "",
		"10.0.0.16/31 10.0.0.20/31": "16 17 20 21",
	} {
		var blocks []netip.Prefix
		for _, b := range strings.Fields(text) {
			blocks = append(blocks, netip.MustParsePrefix(b))
		}
		part, some := r.Within(blocks)
		var got []string
		if some {
			for a, ok := part.Next(part.First()); ok; a, ok = part.Next(a.Next()) {
				got = append(got, fmt.Sprint(a.As4()[3]))
			}
		}
		if strings.Join(got, " ") != want || some != (want != "") || some && part.Prefix() != r.Prefix() {
			t.Errorf("%s: %v, %v, want %s", text, got, some, want)
		}
	}
	six, err := NewRange(RangeSpec{Prefix: netip.MustParsePrefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124")})
	if err != nil {
		t.Fatal(err)
	}
	last, some := six.Within([]netip.Prefix{netip.MustParsePrefix("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126")})
	if a, ok := last.Next(netip.Addr{}); !some || !ok || a != netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc") {
		t.Errorf("the last block of all: %s, %v", a, some)
	}
}
