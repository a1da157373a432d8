package rdmadev

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// losesInfiniBand returns an error if l is an InfiniBand interface, because its RDMA
// device is to move. ib_ipoib, a client of the RDMA device, makes the interface. The
// move destroys it with its addresses and settings, and makes another one in init_net
// that cannot be recognized as the same (ipoib_add_one). A nil l is no interface.
func losesInfiniBand(l *link.Link, device string) error {
	if l == nil || l.Encap != "infiniband" {
		return nil
	}
	return fmt.Errorf("RDMA is in exclusive mode, and the kernel destroys an InfiniBand interface when its RDMA device %s moves", device)
}
