package ibaddr_test

import (
	"fmt"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// The GID of an IPv4 address, as sysfs shows it.
func ExampleGIDOf() {
	gid := ibaddr.GIDOf(netip.MustParseAddr("10.0.0.1"))
	fmt.Println(gid)
	fmt.Println(gid.Addr())
	// Output:
	// 0000:0000:0000:0000:0000:ffff:0a00:0001
	// 10.0.0.1
}
