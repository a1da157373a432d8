package plans

import (
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/devinfo"
	"github.com/rail-cni/rail-cni/pkg/part/ipoib"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/part/routing"
	"github.com/rail-cni/rail-cni/pkg/part/vf"
)

// ReleaseOrder is the order in which the parts of all plugins are released. The reasons for the
// order are:
//
//   - RDMA devices return before their netdev, as they were lent before it. On InfiniBand the
//     move of the RDMA device destroys the netdev, and the kernel makes another netdev in init_net.
//   - The settings of a virtual function are restored once its netdev has left the pod. Its GUIDs
//     are restored first, because that returns both the RDMA device and the netdev.
//   - Addresses are freed when the link is silent.
//   - The rules of a routing table are deleted last, because the packets of the interface must not
//     take another route until the interface has left.
var ReleaseOrder = attachment.ReleaseOrder{
	Interface: []attachment.Part{vf.First{}, rdmadev.Any{}, &netdev.Part{}, vf.Part{}, macvlan.Part{}, ipoib.Part{}, routing.Part{}},
	Addresses: &address.Ask{},
	Files:     []attachment.Part{devinfo.Part{}},
}
