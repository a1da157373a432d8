// Package all has the plan of each plugin, and the order in which the
// parts of any attachment are released.
//
// To add a part, write a package beside this one, give it a field in ledger.Record,
// and name it in Order and in the plan of its plugin, by the same Name in both. A part
// that makes an interface also counts in ledger.Record.HasInterface and NICName.
package all

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/migrate/rdmacni"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/devinfo"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
)

// Order is the order of release of all parts, whichever plugin applied them. RDMA
// devices return before their netdev, as they were lent: on InfiniBand the netdev is
// made anew where the RDMA device is. Addresses are freed when the link is silent.
var Order = attachment.Order{
	Interface: []attachment.Part{rdmadev.Any{}, netdev.Part{}, macvlan.Part{}},
	Addresses: &address.Ask{},
	Files:     []attachment.Part{devinfo.Part{}},
}

// HostDevicePlan returns the plan of host-device: a NIC moves into the pod.
func HostDevicePlan(c *netconf.HostDevice) *attachment.Plan {
	ask, await := address.IPAM()
	rdma, device := rdmadev.Moving{Conf: c.RDMA, Allow: c.Allow}, netdev.Part{Conf: c}
	link, gids, info := address.Interface{}, rdmadev.GIDs{Conf: c.RDMA}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{device, rdma, ask, link, info},
		Apply: []attachment.Part{ask, rdma, device, await, link, gids, info},
	}
}

// MacvlanPlan returns the plan of macvlan: the pod gets a macvlan on a NIC that stays.
func MacvlanPlan(c *netconf.Macvlan) *attachment.Plan {
	ask, await := address.IPAM()
	rdma, child := rdmadev.Shared{Conf: c.RDMA, InPod: c.LinkInContainer}, macvlan.Part{Conf: c}
	link, gids, info := address.Interface{}, rdmadev.GIDs{Conf: c.RDMA}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{child, rdma, ask, link, info},
		Apply: []attachment.Part{ask, child, await, rdma, link, gids, info},
	}
}

// RDMAPlan returns the plan of the chained plugin rdma. records is where rdma-cni
// left its records.
func RDMAPlan(c *netconf.RDMAChained, records string) *attachment.Plan {
	rdma := &rdmadev.Chained{Conf: c}
	return &attachment.Plan{
		Claim:   []attachment.Part{rdma, rdmacni.Part{Dir: records, Off: rdma.Off()}},
		Apply:   []attachment.Part{rdma, rdmadev.GIDs{Conf: c.RDMA}},
		Chained: rdma,
	}
}

// Open opens the node whose host netns is the calling thread's, with the ledger at
// stateDir. It can end the attachments of every plugin.
func Open(stateDir string) (*attachment.Node, error) { return attachment.Open(stateDir, Order) }

// HostDevice returns the plugin host-device.
func HostDevice() attachment.Plugin {
	return attachment.Plugin{
		Name: "host-device", Order: Order, Bare: HostDevicePlan(&netconf.HostDevice{}),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseHostDevice(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return HostDevicePlan(conf), &conf.Common, nil
		},
	}
}

// Macvlan returns the plugin macvlan.
func Macvlan() attachment.Plugin {
	return attachment.Plugin{
		Name: "macvlan", Order: Order, Bare: MacvlanPlan(&netconf.Macvlan{}),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseMacvlan(args.StdinData, netconf.ParseArgs(args.Args))
			if err != nil {
				return nil, nil, err
			}
			return MacvlanPlan(conf), &conf.Common, nil
		},
	}
}

// RDMA returns the chained plugin rdma.
func RDMA() attachment.Plugin {
	return attachment.Plugin{
		Name: "rdma", Order: Order, Bare: RDMAPlan(&netconf.RDMAChained{}, rdmacni.Records),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseRDMAChained(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return RDMAPlan(conf, rdmacni.Records), &conf.Common, nil
		},
	}
}
