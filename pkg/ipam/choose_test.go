package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

func TestPagesSplitAddressesWithoutLoss(t *testing.T) {
	for _, s := range []string{"0.0.0.0", "10.1.2.3", "255.255.255.255", "::", "2001:db8::1:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		a := addr(s)
		if back := pageAddr(PageBase(a), PageIndex(a)); back != a {
			t.Errorf("%s became %s", a, back)
		}
	}
}

func TestPageFindsTheNextFreeIndex(t *testing.T) {
	var p Page
	for i := range 200 {
		p.Set(i, true)
	}
	p.Set(130, false)
	for from, want := range map[int]int{0: 130, 130: 130, 131: 200, 199: 200, 200: 200, 5000: 5000, pageAddrs - 1: pageAddrs - 1} {
		if got := p.nextFree(from); got != want {
			t.Errorf("from %d: %d, want %d", from, got, want)
		}
	}
	if back := ParsePage(p.Bytes()); *back != p {
		t.Error("a page is not what its bytes say")
	}
	if p.Byte(16) != p.Bytes()[16] || p.Byte(16) != 0xfb {
		t.Errorf("byte 16 is %x", p.Byte(16))
	}
	for i := range pageAddrs {
		p.Set(i, true)
	}
	if back := ParsePage(p.Bytes()); *back != p {
		t.Error("a full page is not what its bytes say")
	}
	p.Set(pageAddrs-1, false)
	if got := p.nextFree(0); got != pageAddrs-1 {
		t.Errorf("the last free index is %d", got)
	}
	p.Set(pageAddrs-1, true)
	if got := p.nextFree(0); got != pageAddrs {
		t.Errorf("a full page has %d free", got)
	}
}

// BenchmarkChoose shows that the cost of a choice does not depend on the taken
// addresses.
func BenchmarkChoose(b *testing.B) {
	for _, network := range []string{"10.0.0.0/16", "2001:db8::/64"} {
		for _, handedOut := range []int{10, 60000} {
			b.Run(fmt.Sprintf("%s/%d", network, handedOut), func(b *testing.B) {
				r := newRange(b, RangeSpec{Prefix: netip.MustParsePrefix(network)})
				var taken Set
				for a, i := r.First(), 0; i < handedOut; a, i = a.Next(), i+1 {
					taken.Add(a)
				}
				for b.Loop() {
					if _, err := Choose(r, &taken); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestPageTellsWhichAddressesAreTaken(t *testing.T) {
	var p Page
	for i := 0; i < pageAddrs; i += 7 {
		p.Set(i, true)
	}
	p.Set(14, false)
	for i := range pageAddrs {
		want := i%7 == 0 && i != 14
		if p.Taken(i) != want || p.Byte(i/8)>>(i%8)&1 == 1 != want || p.Bytes()[i/8]>>(i%8)&1 == 1 != want {
			t.Fatalf("address %d: taken is %v, byte %08b, bytes %08b, want %v", i, p.Taken(i), p.Byte(i/8), p.Bytes()[i/8], want)
		}
	}
}

func TestChooseAfterComesAroundToTheLowest(t *testing.T) {
	r := newRange(t, RangeSpec{Prefix: netip.MustParsePrefix("10.0.0.0/29")}) // .1 to .6
	for _, tc := range []struct {
		last  string
		taken []string
		want  string // "" is none
	}{
		{"", nil, "10.0.0.1"},
		{"10.0.0.3", nil, "10.0.0.4"},
		{"10.0.0.3", []string{"10.0.0.4", "10.0.0.5"}, "10.0.0.6"},
		{"10.0.0.6", nil, "10.0.0.1"},
		{"10.0.0.4", []string{"10.0.0.1", "10.0.0.5", "10.0.0.6"}, "10.0.0.2"},
		{"10.0.0.9", nil, "10.0.0.1"}, // of a range that was narrowed
		{"9.9.9.9", nil, "10.0.0.1"},
		{"255.255.255.255", nil, "10.0.0.1"},
		{"10.0.0.3", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}, ""},
	} {
		var last netip.Addr
		if tc.last != "" {
			last = addr(tc.last)
		}
		var used Set
		for _, a := range tc.taken {
			used.Add(addr(a))
		}
		got, err := ChooseAfter(r, &used, last)
		if tc.want == "" {
			if full := (*ExhaustedError)(nil); !errors.As(err, &full) {
				t.Errorf("after %s: %s, %v", tc.last, got, err)
			}
		} else if err != nil || got != addr(tc.want) {
			t.Errorf("after %q with %s taken: %s, %v, want %s", tc.last, tc.taken, got, err, tc.want)
		}
	}
}
