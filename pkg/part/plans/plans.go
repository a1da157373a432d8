package plans

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
	return nicPlan(c, &netdev.Part{Conf: c}, moving(c), c.LinkWait())
}

// SRIOVPlan returns the plan of sriov: a virtual function moves into the pod, with the settings of
// the network. files is the directory in which sriov-cni keeps its state.
func SRIOVPlan(c *netconf.SRIOV, files string) *attachment.Plan {
	mac, _ := c.HardwareAddr() // of a valid configuration
	plan := nicPlan(&c.HostDevice, &netdev.Part{Conf: &c.HostDevice, MAC: mac}, moving(&c.HostDevice), c.LinkWait())
	first, last := sriovcni.Parts(files)
	return withSettings(plan, vf.Ethernet(c), first, last)
}

// IBSRIOVPlan returns the plan of ib-sriov: an InfiniBand virtual function moves into the pod, with
// a GUID of its own. files is the directory in which ib-sriov-cni keeps its state.
func IBSRIOVPlan(c *netconf.IBSRIOV, files string) *attachment.Plan {
	rdma, wait := moving(&c.HostDevice), c.LinkWait()
	rdma.Isolated = c.RDMAIsolation
	plan := nicPlan(&c.HostDevice, &netdev.Part{Conf: &c.HostDevice, NewGUID: c.GUID != 0}, rdma, wait)
	partition := rdmadev.Partition{Key: uint16(c.PKey), Required: c.IBKubernetesEnabled, Wait: wait.Timeout}
	plan.Apply = append(plan.Apply, partition)
	return withSettings(plan, vf.InfiniBand(c), sriovcni.InfiniBand(files))
}

// withSettings adds the settings of a virtual function to a plan that [nicPlan] returned. first and
// last are parts that end attachments of another project's plugin. first comes before the part of
// the NIC, and last comes after it.
func withSettings(plan *attachment.Plan, functions vf.Part, first attachment.Part, last ...attachment.Part) *attachment.Plan {
	plan.Claim = slices.Concat([]attachment.Part{first, plan.Claim[0], functions}, last, plan.Claim[1:])
	plan.Apply = slices.Insert(plan.Apply, 0, attachment.Part(functions))
	return plan
}

// moving returns the part for the RDMA devices of a NIC that moves into the pod.
func moving(c *netconf.HostDevice) rdmadev.Moving {
	return rdmadev.Moving{Conf: c.RDMA, Allow: c.Allow, TOS: c.RoCETOS}
}

// nicPlan returns a plan whose part device moves a NIC.
func nicPlan(c *netconf.HostDevice, device *netdev.Part, rdma rdmadev.Moving, wait netconf.LinkWait) *attachment.Plan {
	ask, await := address.IPAM()
	link, ports := address.Interface{Wait: wait}, rdmadev.Ports{Wait: wait}
	routes, gids, info := routing.Part{Conf: &c.Routing}, rdmadev.GIDs{Conf: c.RDMA}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{device, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, rdma, device, await, routes, link, ports, gids, info},
	}
}

// MacvlanPlan returns the plan of macvlan: the pod gets a macvlan on a NIC that stays on the host.
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

// IPoIBPlan returns the plan of ipoib: the pod gets a child of an InfiniBand interface that stays
// on the host.
func IPoIBPlan(c *netconf.IPoIB) *attachment.Plan {
	ask, await := address.IPAM()
	rdma, child := rdmadev.Shared{Conf: c.RDMA}, ipoib.Part{Conf: c}
	link, routes, info := address.Interface{Wait: c.LinkWait()}, routing.Part{Conf: &c.Routing}, devinfo.Part{}
	return &attachment.Plan{
		Claim: []attachment.Part{child, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, child, await, rdma, routes, link, info},
	}
}

// RDMAPlan returns the plan of the chained plugin rdma. records is the directory in which rdma-cni
// keeps its records.
func RDMAPlan(c *netconf.RDMAChained, records string) *attachment.Plan {
	rdma := &rdmadev.Chained{Conf: c}
	return &attachment.Plan{
		Claim:   []attachment.Part{rdma, rdmacni.Part{Dir: records, Off: rdma.Off()}},
		Apply:   []attachment.Part{rdma, rdmadev.Carrier{Chained: rdma}, rdmadev.Ports{Wait: c.LinkWait()}, rdmadev.GIDs{Conf: c.RDMA}},
		Chained: rdma,
	}
}

// Open opens the node. Its host netns is the netns of the calling thread, and its ledger is in
// stateDir. The node can end the attachments of every plugin.
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

// IBSRIOV returns the plugin ib-sriov.
func IBSRIOV() attachment.Plugin {
	return attachment.Plugin{
		Name: "ib-sriov", Order: ReleaseOrder, Bare: IBSRIOVPlan(&netconf.IBSRIOV{}, sriovcni.InfiniBandDir),
		Parse: func(args *skel.CmdArgs) (*attachment.Plan, *netconf.Common, error) {
			conf, err := netconf.ParseIBSRIOV(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return IBSRIOVPlan(conf, sriovcni.InfiniBandDir), &conf.Common, nil
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
