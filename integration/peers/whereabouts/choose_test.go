package whereabouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/iphelpers"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/local"
)

// rounds is the number of random cases of a test.
const rounds = 20000

// bases are networks of all sizes, with page boundaries inside. The last
// addresses of a family are left out: there, an excluded block that ends at the
// very last address makes whereabouts wrap around to the first one.
var bases = []string{
	"10.0.0.0", "10.0.255.0", "192.168.255.128", "172.31.1.0", "254.255.255.0", "0.0.0.0",
	"2001:db8::", "2001:db8::ff00", "2001:db8:0:0:ffff:ffff:ffff:ff00", "fe80::",
}

// testCase is one range, in both forms.
type testCase struct {
	theirs   types.RangeConfiguration
	ours     ipam.RangeSpec
	reserved []types.IPReservation
	taken    ipam.Set
}

func newCase(rnd *rand.Rand) *testCase {
	base := netip.MustParseAddr(bases[rnd.IntN(len(bases))])
	bits := base.BitLen() - rnd.IntN(12)
	if rnd.IntN(4) == 0 {
		bits = rnd.IntN(base.BitLen()-7) + 8
	}
	prefix, err := base.Prefix(bits)
	if err != nil {
		panic(err)
	}
	c := &testCase{
		theirs: types.RangeConfiguration{Range: prefix.String()},
		ours:   ipam.RangeSpec{Prefix: prefix},
	}
	if rnd.IntN(2) == 0 {
		c.ours.Start = near(rnd, base)
		c.theirs.RangeStart = c.ours.Start.AsSlice()
	}
	if rnd.IntN(2) == 0 {
		c.ours.End = near(rnd, base)
		c.theirs.RangeEnd = c.ours.End.AsSlice()
	}
	for range rnd.IntN(4) {
		c.exclude(rnd, near(rnd, base))
	}
	for range rnd.IntN(60) {
		a := near(rnd, base)
		c.taken.Add(a)
		c.reserved = append(c.reserved, types.IPReservation{IP: a.AsSlice(), ContainerID: "x", PodRef: "x/x", IfName: "x"})
	}
	return c
}

// near returns one of the 256 addresses from base on, seldom one of the other
// family.
func near(rnd *rand.Rand, base netip.Addr) netip.Addr {
	if rnd.IntN(40) == 0 {
		if base.Is4() {
			return netip.MustParseAddr("2001:db8::5")
		}
		return netip.MustParseAddr("10.0.0.5")
	}
	a := base
	for range rnd.IntN(64) * (1 + rnd.IntN(4)) {
		a = a.Next()
	}
	return a
}

func (c *testCase) exclude(rnd *rand.Rand, a netip.Addr) {
	text := a.String()
	block := netip.PrefixFrom(a, a.BitLen())
	if rnd.IntN(3) != 0 {
		block = netip.PrefixFrom(a, a.BitLen()-rnd.IntN(9))
		text = block.String()
	}
	c.theirs.OmitRanges = append(c.theirs.OmitRanges, text)
	c.ours.ExcludeText = append(c.ours.ExcludeText, text)
	c.ours.Exclude = append(c.ours.Exclude, block.Masked())
}

func TestBoundsAreTheirs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 1))
	usable := 0
	for range rounds {
		c := newCase(rnd)
		_, ipnet, err := net.ParseCIDR(c.theirs.Range)
		if err != nil {
			t.Fatal(err)
		}
		first, last, theirErr := iphelpers.GetIPRange(*ipnet, c.theirs.RangeStart, c.theirs.RangeEnd)
		r, ourErr := ipam.NewRange(c.ours)
		if (theirErr == nil) != (ourErr == nil) {
			t.Fatalf("%+v: theirs %v, ours %v", c.theirs, theirErr, ourErr)
		}
		if ourErr != nil {
			continue
		}
		usable++
		if first.String() != r.First().String() || last.String() != r.Last().String() {
			t.Fatalf("%+v: theirs %s - %s, ours %s - %s", c.theirs, first, last, r.First(), r.Last())
		}
	}
	if usable < rounds/2 {
		t.Errorf("only %d ranges were usable", usable)
	}
}

func TestChoiceIsTheirs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 2))
	chosen, exhausted := 0, 0
	for range rounds {
		c := newCase(rnd)
		r, err := ipam.NewRange(c.ours)
		if err != nil {
			continue // compared by TestBoundsAreTheirs
		}
		theirs, _, theirErr := allocate.AssignIP(c.theirs, c.reserved, "id", "ns/pod", "net1")
		ours, ourErr := ipam.Choose(r, &c.taken)
		if theirErr != nil {
			exhausted++
			if ourErr == nil || ourErr.Error() != theirErr.Error() {
				t.Fatalf("%+v:\ntheirs %v\nours   %v, %v", c.theirs, theirErr, ours, ourErr)
			}
			continue
		}
		chosen++
		if ourErr != nil || ours.String() != theirs.IP.String() {
			t.Fatalf("%+v reserved %v: theirs %s, ours %v, %v", c.theirs, c.reserved, theirs.IP, ours, ourErr)
		}
	}
	if chosen < rounds/4 || exhausted < rounds/50 {
		t.Errorf("%d chosen and %d exhausted are no fair sample", chosen, exhausted)
	}
}

// TestTooSmallTextIsTheirs compares both error texts about networks without
// usable addresses, except the network itself: whereabouts prints a Go
// structure there.
func TestTooSmallTextIsTheirs(t *testing.T) {
	for _, p := range []string{"10.0.0.0/31", "10.0.0.0/32", "2001:db8::/127", "2001:db8::/128"} {
		_, _, theirs := allocate.AssignIP(types.RangeConfiguration{Range: p}, nil, "id", "ns/pod", "net1")
		_, ourErr := ipam.NewRange(ipam.RangeSpec{Prefix: netip.MustParsePrefix(p)})
		var ours *ipam.TooSmallError // which adds the cure
		if theirs == nil || !errors.As(ourErr, &ours) {
			t.Fatalf("%s: theirs %v, ours %v", p, theirs, ourErr)
		}
		_, ipnet, err := net.ParseCIDR(p)
		if err != nil {
			t.Fatal(err)
		}
		theirNetwork := fmt.Sprintf("{%s %s}", ipnet.IP, ipnet.Mask)
		if want := fmt.Sprintf("net mask is too short, subnet %s has no usable IP addresses, it is too small", theirNetwork); theirs.Error() != want {
			t.Errorf("theirs %q, want %q", theirs, want)
		}
		if want := fmt.Sprintf("net mask is too short, subnet %s has no usable IP addresses, it is too small", p); ours.Error() != want {
			t.Errorf("ours %q, want %q", ours, want)
		}
	}
}

// Divergence: the gateway. Whereabouts assigns it like any other address.
func TestDivergenceGatewayIsNotHandedOut(t *testing.T) {
	theirs, _, err := allocate.AssignIP(types.RangeConfiguration{Range: "172.31.1.0/24"}, nil, "id", "ns/pod", "net1")
	if err != nil || theirs.IP.String() != "172.31.1.1" {
		t.Fatalf("theirs %v, %v", theirs, err)
	}
	r, err := ipam.NewRange(ipam.RangeSpec{
		Prefix: netip.MustParsePrefix("172.31.1.0/24"), Avoid: []netip.Addr{netip.MustParseAddr("172.31.1.1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if ours, err := ipam.Choose(r, &ipam.Set{}); err != nil || ours.String() != "172.31.1.2" {
		t.Errorf("ours %v, %v", ours, err)
	}
}

// TestLivesOfPodsAreTheirs plays one random history of pods, sandboxes and
// interfaces on our store and on their reservation list.
func TestLivesOfPodsAreTheirs(t *testing.T) {
	for _, cidr := range []string{"10.0.0.0/27", "2001:db8::/123"} {
		rnd := rand.New(rand.NewPCG(10, 3))
		prefix := netip.MustParsePrefix(cidr)
		spec := ipam.RangeSpec{Prefix: prefix}
		exclude := prefix.Addr().Next().Next().Next().Next()
		spec.Exclude = []netip.Prefix{netip.PrefixFrom(exclude, prefix.Bits()+3)}
		spec.ExcludeText = []string{spec.Exclude[0].String()}
		r, err := ipam.NewRange(spec)
		if err != nil {
			t.Fatal(err)
		}
		pool := ipam.Pool{Prefix: prefix}
		store := local.New(t.TempDir())
		theirConf := types.RangeConfiguration{Range: cidr, OmitRanges: spec.ExcludeText}
		var list []types.IPReservation
		full := 0
		for step := range 2000 {
			pod, sandbox := rnd.IntN(20), rnd.IntN(3)
			o := ipam.Owner{
				ContainerID: fmt.Sprintf("c%d-%d", pod, sandbox), PodRef: fmt.Sprintf("ns/p%d", pod), IfName: fmt.Sprintf("net%d", rnd.IntN(3)),
			}
			if rnd.IntN(5) < 2 {
				list, _ = allocate.DeallocateIP(list, o.ContainerID, o.IfName)
				if err := store.Release(context.Background(), o, []ipam.Pool{pool}); err != nil {
					t.Fatalf("step %d: DEL: %v", step, err)
				}
				continue
			}
			theirs, updated, theirErr := allocate.AssignIP(theirConf, list, o.ContainerID, o.PodRef, o.IfName)
			ours, ourErr := store.Allocate(context.Background(), o, []ipam.Claim{{Pool: pool, Range: r, Exclusive: true}})
			if (theirErr == nil) != (ourErr == nil) {
				t.Fatalf("step %d: theirs %v, ours %v", step, theirErr, ourErr)
			}
			if theirErr != nil {
				full++
				continue
			}
			list = updated
			if ours[0].String() != theirs.String() {
				t.Fatalf("step %d: %+v: theirs %s, ours %s", step, o, theirs.String(), ours[0])
			}
		}
		if full == 0 || full > 1000 {
			t.Errorf("%s was exhausted %d times: no fair sample", cidr, full)
		}
	}
}
