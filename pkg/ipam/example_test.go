package ipam_test

import (
	"fmt"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// The lowest free address is chosen: .1 is taken, .2 is excluded, .3 is the gateway.
func ExampleChoose() {
	r, err := ipam.NewRange(ipam.RangeSpec{
		Prefix:  netip.MustParsePrefix("10.0.0.0/24"),
		Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")},
		Avoid:   []netip.Addr{netip.MustParseAddr("10.0.0.3")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var taken ipam.Set
	taken.Add(netip.MustParseAddr("10.0.0.1"))

	addr, err := ipam.Choose(r, &taken)
	fmt.Println(addr, err)
	fmt.Println(r.Why(netip.MustParseAddr("10.0.1.1")))
	// Output:
	// 10.0.0.4 <nil>
	// it is not in 10.0.0.0/24
}

func ExamplePool_Name() {
	fmt.Println(ipam.Pool{Prefix: netip.MustParsePrefix("10.0.0.0/24")}.Name())
	fmt.Println(ipam.Pool{Space: "rails", Prefix: netip.MustParsePrefix("fd00:1::/64")}.Name())
	// Output:
	// 10.0.0.0-24
	// rails-fd00-1---64
}
