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

// ReleaseOrder is the order of release of all parts, of any plugin. RDMA
// devices return before their netdev, as they were lent: on InfiniBand the move
// destroys the netdev, and the kernel makes another one in init_net. The settings of a virtual
// function are restored once its netdev has left the pod; its GUIDs are restored first, because that returns both. Addresses
// are freed when the link is silent. The rules of a routing table go last: until the
// interface has left, its packets must not take another way.
var ReleaseOrder = attachment.ReleaseOrder{
	Interface: []attachment.Part{vf.First{}, rdmadev.Any{}, &netdev.Part{}, vf.Part{}, macvlan.Part{}, ipoib.Part{}, routing.Part{}},
	Addresses: &address.Ask{},
	Files:     []attachment.Part{devinfo.Part{}},
}
