package all

import (
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/devinfo"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
)

// ReleaseOrder is the order of release of all parts, whichever plugin applied them. RDMA
// devices return before their netdev, as they were lent: on InfiniBand the netdev is
// made anew where the RDMA device is. Addresses are freed when the link is silent.
var ReleaseOrder = attachment.ReleaseOrder{
	Interface: []attachment.Part{rdmadev.Any{}, netdev.Part{}, macvlan.Part{}},
	Addresses: &address.Ask{},
	Files:     []attachment.Part{devinfo.Part{}},
}
