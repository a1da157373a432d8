package netns_test

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// The kernel reuses inode numbers of namespaces, but never a cookie.
func ExampleID_Equal() {
	recorded := netns.ID{Inode: 4026532281, Cookie: 17}
	found := netns.ID{Inode: 4026532281, Cookie: 23}
	fmt.Println(recorded.Equal(found))
	// Output: false
}
