package all

import (
	"slices"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/migrate/rdmacni"
	"github.com/rail-cni/rail-cni/pkg/migrate/sriovcni"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/devinfo"
	"github.com/rail-cni/rail-cni/pkg/part/ipoib"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/part/routing"
	"github.com/rail-cni/rail-cni/pkg/part/vf"
)

// HostDevicePlan returns the plan of host-device: a NIC moves into the pod.
func HostDevicePlan(c *netconf.HostDevice) *attachment.Plan {
	return nicPlan(c, &netdev.Part{Conf: c})
}

// SRIOVPlan returns the plan of sriov: a virtual function moves into the pod, with settings of its own. files is
// sriov-cni's directory.
func SRIOVPlan(c *netconf.SRIOV, files string) *attachment.Plan {
	mac, _ := c.HardwareAddr() // of a valid configuration
	plan := nicPlan(&c.HostDevice, &netdev.Part{Conf: &c.HostDevice, MAC: mac})
	functions := vf.Part{Conf: c}
	first, last := sriovcni.Parts(files)
	plan.Claim = slices.Concat([]attachment.Part{first, plan.Claim[0], functions, last}, plan.Claim[1:]) // around the NIC
	plan.Apply = slices.Insert(plan.Apply, 0, attachment.Part(functions))
	return plan
}

// nicPlan returns the plan that moves a NIC by device.
func nicPlan(c *netconf.HostDevice, device *netdev.Part) *attachment.Plan {
	ask, await := address.IPAM()
	rdma := rdmadev.Moving{Conf: c.RDMA, Allow: c.Allow, TOS: c.RoCETOS}
	link, ports := address.Interface{Wait: c.LinkWait()}, rdmadev.Ports{Wait: c.LinkWait()}
	routes, gids, info := routing.Part{Conf: &c.Routing}, rdmadev.GIDs{Conf: c.RDMA}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{device, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, rdma, device, await, routes, link, ports, gids, info},
	}
}

// MacvlanPlan returns the plan of macvlan: the pod gets a macvlan on a NIC that stays.
func MacvlanPlan(c *netconf.Macvlan) *attachment.Plan {
	ask, await := address.IPAM()
	rdma, child := rdmadev.Shared{Conf: c.RDMA, InPod: c.LinkInContainer}, macvlan.Part{Conf: c}
	link, ports := address.Interface{Wait: c.LinkWait()}, rdmadev.Ports{Wait: c.LinkWait()}
	routes, gids, info := routing.Part{Conf: &c.Routing}, rdmadev.GIDs{Conf: c.RDMA}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{child, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, child, await, rdma, routes, link, ports, gids, info},
	}
}

// IPoIBPlan returns the plan of ipoib: the pod gets a child of an InfiniBand interface that stays.
func IPoIBPlan(c *netconf.IPoIB) *attachment.Plan {
	ask, await := address.IPAM()
	rdma, child := rdmadev.Shared{Conf: c.RDMA}, ipoib.Part{Conf: c}
	link, routes, info := address.Interface{Wait: c.LinkWait()}, routing.Part{Conf: &c.Routing}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{child, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, child, await, rdma, routes, link, info},
	}
}

// RDMAPlan returns the plan of the chained plugin rdma. records is rdma-cni's
// directory of records.
func RDMAPlan(c *netconf.RDMAChained, records string) *attachment.Plan {
	rdma := &rdmadev.Chained{Conf: c}
	return &attachment.Plan{
		Claim:   []attachment.Part{rdma, rdmacni.Part{Dir: records, Off: rdma.Off()}},
		Apply:   []attachment.Part{rdma, rdmadev.Carrier{Chained: rdma}, rdmadev.Ports{Wait: c.LinkWait()}, rdmadev.GIDs{Conf: c.RDMA}},
		Chained: rdma,
	}
}

// Open opens the node whose host netns is the calling thread's, with the ledger at
// stateDir. It can end the attachments of every plugin.
func Open(stateDir string) (*attachment.Node, error) { return attachment.Open(stateDir, ReleaseOrder) }

// HostDevice returns the plugin host-device.
func HostDevice() attachment.Plugin {
	return attachment.Plugin{
		Name: "host-device", Order: ReleaseOrder, Bare: HostDevicePlan(&netconf.HostDevice{}),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseHostDevice(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return HostDevicePlan(conf), &conf.Common, nil
		},
	}
}

// SRIOV returns the plugin sriov.
func SRIOV() attachment.Plugin {
	return attachment.Plugin{
		Name: "sriov", Order: ReleaseOrder, Bare: SRIOVPlan(&netconf.SRIOV{}, sriovcni.Dir),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseSRIOV(args.StdinData, netconf.ParseArgs(args.Args))
			if err != nil {
				return nil, nil, err
			}
			return SRIOVPlan(conf, sriovcni.Dir), &conf.Common, nil
		},
	}
}

// Macvlan returns the plugin macvlan.
func Macvlan() attachment.Plugin {
	return attachment.Plugin{
		Name: "macvlan", Order: ReleaseOrder, Bare: MacvlanPlan(&netconf.Macvlan{}),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseMacvlan(args.StdinData, netconf.ParseArgs(args.Args))
			if err != nil {
				return nil, nil, err
			}
			return MacvlanPlan(conf), &conf.Common, nil
		},
	}
}

// IPoIB returns the plugin ipoib.
func IPoIB() attachment.Plugin {
	return attachment.Plugin{
		Name: "ipoib", Order: ReleaseOrder, Bare: IPoIBPlan(&netconf.IPoIB{}),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseIPoIB(args.StdinData, netconf.ParseArgs(args.Args))
			if err != nil {
				return nil, nil, err
			}
			return IPoIBPlan(conf), &conf.Common, nil
		},
	}
}

// RDMA returns the chained plugin rdma.
func RDMA() attachment.Plugin {
	return attachment.Plugin{
		Name: "rdma", Order: ReleaseOrder, Bare: RDMAPlan(&netconf.RDMAChained{}, rdmacni.Records),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseRDMAChained(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return RDMAPlan(conf, rdmacni.Records), &conf.Common, nil
		},
	}
}
