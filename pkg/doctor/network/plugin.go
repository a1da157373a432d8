package network

import (
	"encoding/json"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Plugin is one plugin of a network.
type Plugin struct {
	Type string // as the network has it, perhaps with a prefix
	Kind string // the rail-cni plugin that the type names, "" for a plugin of another project
	Raw  []byte // the plugin's configuration, with the name and the version of the list

	HostDevice *netconf.HostDevice // also of sriov and ib-sriov
	Macvlan    *netconf.Macvlan
	IPoIB      *netconf.IPoIB
	Common     *netconf.Common // of the plugin above; for a plugin of another project, the keys that can be read

	Err     error // from the plugin's own parser
	RailErr error // from the addresses of the first rail whose addresses are invalid
	Pools   []Pool
	IPAMErr error // from the parser of whereabouts
}

// Pool is the configuration that whereabouts reads from a network. If the addresses differ by rail,
// a pool is for one rail.
type Pool struct {
	Rail *int
	Conf *ipamconf.Whereabouts
}

// Kinds are the plugins of rail-cni that stand in "plugins" or alone.
var Kinds = []string{"host-device", "ib-sriov", "sriov", "macvlan", "ipoib", "rdma"} // a name stands before the names with which it ends: ib-sriov before sriov

// Whereabouts is the type of rail-cni's IPAM plugin. A type in a network may have a prefix before
// it.
const Whereabouts = "whereabouts"

// kindOf returns the rail-cni plugin that a type names, or "" if it names none. The type may have
// the prefix of an installation, for example "rail-host-device".
func kindOf(name string) string {
	for _, kind := range Kinds {
		if name == kind || strings.HasSuffix(name, "-"+kind) {
			return kind
		}
	}
	return ""
}

// parse parses the configuration with the plugin's own parser, and its addresses with the parser of
// whereabouts.
func (p *Plugin) parse(rails []int, prefixes map[int]*nodefile.Prefix) {
	switch p.Kind {
	case "host-device":
		if p.HostDevice, p.Err = netconf.ParseHostDevice(p.Raw); p.Err == nil {
			p.Common = &p.HostDevice.Common
		}
	case "sriov":
		var c *netconf.SRIOV
		if c, p.Err = netconf.ParseSRIOV(p.Raw, netconf.Args{}); p.Err == nil {
			p.HostDevice, p.Common = &c.HostDevice, &c.Common
		}
	case "ib-sriov":
		var c *netconf.IBSRIOV
		if c, p.Err = netconf.ParseIBSRIOV(p.Raw); p.Err == nil {
			p.HostDevice, p.Common = &c.HostDevice, &c.Common
		}
	case "macvlan":
		if p.Macvlan, p.Err = netconf.ParseMacvlan(p.Raw, netconf.Args{}); p.Err == nil {
			p.Common = &p.Macvlan.Common
		}
	case "ipoib":
		if p.IPoIB, p.Err = netconf.ParseIPoIB(p.Raw, netconf.Args{}); p.Err == nil {
			p.Common = &p.IPoIB.Common
		}
	case "rdma":
		_, p.Err = netconf.ParseRDMAChained(p.Raw)
		return
	default:
		p.Common = netconf.Lenient(p.Raw)
	}
	if p.Err != nil || !strings.HasSuffix(p.Common.IPAM.Type, Whereabouts) {
		return
	}
	if !p.Common.Varies() || p.Kind == "" {
		p.addPool(nil, p.Raw)
		return
	}
	if p.ByPrefix() && prefixes == nil {
		return // the ranges are in the node file, which is not known here
	}
	node := 0
	for _, rail := range p.Common.PossibleRails(rails) {
		text, err := p.Common.Expanded(ipamconf.Variables{Rail: &rail, Rails: rails, Node: &node, Prefix: prefixes[rail]})
		if err != nil {
			p.RailErr = err
			return
		}
		if !p.Common.VariesByRail() {
			p.addPool(nil, text)
			return
		}
		if !p.addPool(&rail, text) {
			return
		}
	}
}

// IPAMType returns the type of the network's IPAM plugin, or "" if it has none.
func (p *Plugin) IPAMType() string {
	if p.Common == nil {
		return ""
	}
	return p.Common.IPAM.Type
}

// ByPrefix reports whether the addresses come from the prefixes in the node file.
func (p *Plugin) ByPrefix() bool {
	var conf struct {
		IPAM struct {
			Prefix any `json:"prefix"`
		} `json:"ipam"`
	}
	return json.Unmarshal(p.Raw, &conf) == nil && conf.IPAM.Prefix == "node"
}

// addPool parses the addresses and adds a pool. It reports whether whereabouts accepts the
// addresses.
func (p *Plugin) addPool(rail *int, raw []byte) bool {
	conf, err := ipamconf.ParseWhereabouts(raw, "", nil)
	if err != nil {
		p.IPAMErr = err
		return false
	}
	p.Pools = append(p.Pools, Pool{rail, conf})
	return true
}

// Ranges returns the ranges of the pool in the form in which whereabouts uses them. Gateways are
// not excluded from the ranges.
func (p *Pool) Ranges() (all []*ipam.Range, err error) {
	for _, c := range p.Conf.Ranges {
		one, err := ipam.NewRange(ipam.RangeSpec{
			Prefix: c.Prefix, Start: c.Start, End: c.End, Exclude: c.Exclude, ExcludeText: c.ExcludeText, Small: p.Conf.NodePrefix,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// First reports whether p is the first pool of the plugin. A rule whose finding holds for every
// rail reports it only for the first pool.
func (p *Pool) First(plugin *Plugin) bool { return p == &plugin.Pools[0] }

// Selected returns the name or PCI address by which the plugin selects its NIC on the host. It
// returns "" if the plugin selects the NIC by its rail, or if the kubelet chooses the device.
func (p *Plugin) Selected() string {
	switch {
	case p.HostDevice != nil && p.HostDevice.Device != "":
		return p.HostDevice.Device
	case p.HostDevice != nil && p.HostDevice.HWAddr == "" && p.HostDevice.KernelPath == "":
		return p.HostDevice.PCIBusID
	case p.Macvlan != nil && !p.Macvlan.LinkInContainer:
		return p.Macvlan.Master
	case p.IPoIB != nil:
		return p.IPoIB.Master
	}
	return ""
}

// SharedRDMA returns the value of the key "rdma" if pods of the plugin share a NIC of the host. For
// any other plugin it returns "".
func (p *Plugin) SharedRDMA() string {
	switch {
	case p.Macvlan != nil && !p.Macvlan.LinkInContainer:
		return p.Macvlan.RDMA.RDMA
	case p.IPoIB != nil:
		return p.IPoIB.RDMA.RDMA
	}
	return ""
}

// TakesNIC reports whether the plugin lends a NIC, or makes a child interface on one.
func (p *Plugin) TakesNIC() bool { return p.HostDevice != nil || p.Macvlan != nil || p.IPoIB != nil }

// Policy returns the routing policy in the plugin's configuration.
func (p *Plugin) Policy() netconf.RoutingPolicy {
	switch {
	case p.HostDevice != nil:
		return p.HostDevice.Policy
	case p.Macvlan != nil:
		return p.Macvlan.Policy
	case p.IPoIB != nil:
		return p.IPoIB.Policy
	}
	return netconf.RoutingPolicy{}
}

// SelectsNone reports whether the plugin is host-device and its configuration selects no NIC.
func (p *Plugin) SelectsNone() bool {
	h := p.HostDevice
	return h != nil && h.Device == "" && h.HWAddr == "" && h.KernelPath == "" && len(h.IDs()) == 0 && h.Rail.Number == nil
}

// Rail returns the rail that the plugin's NIC must have.
func (p *Plugin) Rail() netconf.Rail {
	switch {
	case p.HostDevice != nil:
		return p.HostDevice.Rail
	case p.Macvlan != nil:
		return p.Macvlan.Rail
	case p.IPoIB != nil:
		return p.IPoIB.Rail
	}
	return netconf.Rail{}
}
