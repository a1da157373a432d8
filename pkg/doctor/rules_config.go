package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

var configRules = []Rule{
	{
		ID: "CNI-NAD", Scope: ConfigScope, Severity: Fail,
		Expects:     "The plugins can read their configuration in each NetworkAttachmentDefinition.",
		Consequence: "Each ADD of the network fails, and its pods stay in ContainerCreating.",
		Cure:        "Correct the key or value that the evidence names; docs/reference/keys.md has all keys.",
		Check: func(f *Facts, r *Report) {
			eachNetwork(f, r, func(n *network) {
				r.judged()
				if n.err != nil {
					r.Find(n.config.Object(), "%s", n.err)
				}
				for i := range n.plugins {
					if err := cmp.Or(n.plugins[i].err, n.plugins[i].ipamErr); err != nil {
						r.Find(n.config.Object(), "%s: %s", n.plugins[i].name, err)
					}
				}
			})
		},
	},
	{
		ID: "CNI-TYPE", Scope: ConfigScope, Severity: Warn,
		Expects:     "The type of each plugin and IPAM plugin in a network is not a misspelled name of a rail-cni plugin (one letter differs).",
		Consequence: "The runtime looks for a plugin with the misspelled name, and each ADD of the network fails. No rule checks the plugin's configuration.",
		Cure:        "Correct the type. If a plugin of another project has that name, ignore this rule (--ignore CNI-TYPE).",
		Check:       checkTypes,
	},
	{
		ID: "CNI-FOREIGN-TYPE", Scope: ConfigScope, Severity: Fail,
		Expects: "Each node on which pods of a network can run has a plugin of the network's type. If the network has keys that only rail-cni reads, the plugin is rail-cni's. " +
			"Nodes without a plugin of rail-cni are not checked.",
		Consequence: "Without the plugin each ADD of the network fails. The plugin of another project ignores the keys, or refuses them.",
		Cure: "Install rail-cni's plugin (plugins.names in the chart, or rail-agent install --plugins): sriov, ib-sriov and ipoib are not installed by default. " +
			"Or remove the keys, so that the other plugin does everything that the network requests.",
		Check: checkForeignTypes,
	},
	{
		ID: "CNI-KEY", Scope: ConfigScope, Severity: Warn,
		Expects:     "A network has only keys that its plugins know.",
		Consequence: "Plugins ignore unknown keys: a misspelled one has no effect.",
		Cure:        "Correct the key, or remove it; docs/reference/keys.md has all keys.",
		Check: func(f *Facts, r *Report) {
			eachNetwork(f, r, func(n *network) {
				for i := range n.plugins {
					r.judged()
					for _, text := range n.plugins[i].unknownKeys() {
						r.Find(n.config.Object(), "%s: %s", n.plugins[i].name, text)
					}
				}
			})
		},
	},
	{
		ID: "CNI-VERSION", Scope: ConfigScope, Severity: Fail,
		Expects:     "A network names a CNI version that the plugins support: for a list of plugins, 0.3.0 or newer.",
		Consequence: "The runtime or the plugin refuses the configuration.",
		Cure:        "Write \"cniVersion\": \"1.0.0\".",
		Check: func(f *Facts, r *Report) {
			known := version.All.SupportedVersions()
			eachNetwork(f, r, func(n *network) {
				r.judged()
				switch v := cmp.Or(n.version, "0.1.0"); {
				case n.err != nil:
				case !slices.Contains(known, v):
					r.Find(n.config.Object(), "cniVersion is %q, and the plugins speak %s", v, strings.Join(known, ", "))
				case n.list && slices.Index(known, v) < slices.Index(known, "0.3.0"):
					r.Find(n.config.Object(), "it is a list of plugins, and cniVersion is %s", v)
				}
			})
		},
	},
	{
		ID: "CNI-NETSTATUS", Scope: ConfigScope, Severity: Warn,
		Expects:     "A network names a CNI version whose results name the interface: 0.3.0 or newer.",
		Consequence: "Multus writes no entry of the network in the pod's network-status: programs that read it do not find the rail, and whereabouts' own reconciler, if it runs, frees the address of the running pod.",
		Cure:        "Write \"cniVersion\": \"1.0.0\". A network without the key has version 0.1.0.",
		Check: func(f *Facts, r *Report) {
			known := version.All.SupportedVersions()
			eachNetwork(f, r, func(n *network) {
				r.judged()
				v := cmp.Or(n.version, "0.1.0")
				if i := slices.Index(known, v); n.err == nil && !n.list && i >= 0 && i < slices.Index(known, "0.3.0") {
					r.Find(n.config.Object(), "its results have version %s and name no interface", v)
				}
			})
		},
	},
	{
		ID: "CNI-CHAIN", Scope: ConfigScope, Severity: Fail,
		Expects:     "In a list of plugins, host-device, macvlan or ipoib is the first plugin and occurs once, and rdma comes after the plugin that makes the interface.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Put the plugin that makes the interface first. After host-device, macvlan and ipoib of rail-cni the plugin rdma is not needed.",
		Check: func(f *Facts, r *Report) {
			eachNetwork(f, r, func(n *network) {
				for i := range n.plugins {
					if n.plugins[i].kind != "" {
						r.judged()
					}
					switch p := &n.plugins[i]; {
					case p.kind == "rdma" && i == 0:
						r.Find(n.config.Object(), "%s is the first plugin, but works only after the one that makes the interface", p.name)
					case p.kind != "" && p.kind != "rdma" && i > 0:
						r.Find(n.config.Object(), "%s makes the interface, but comes after %s", p.name, n.plugins[i-1].name)
					}
				}
			})
		},
	},
	{
		ID: "CNI-MODE", Scope: ConfigScope, Severity: Warn,
		Expects:     "The networks fit the node's RDMA mode: in exclusive mode no macvlan requires RDMA, and a network with another project's sriov has the plugin rdma behind it.",
		Consequence: "The pod has an interface, but no RDMA device; with \"rdma\": \"required\" each ADD fails.",
		Cure:        "In exclusive mode lend whole NICs with host-device, and put rdma after sriov-cni's sriov; or set the mode to shared (docs/guide/rdma-modes.md), or \"rdma\": \"off\" in the network.",
		Check:       checkNetworkModes,
	},
	{
		ID: "CNI-DEVICE", Scope: ConfigScope, Severity: Warn,
		Expects:     "No two networks of a namespace lend the same NIC, and no macvlan network uses a NIC that another network lends.",
		Consequence: "Only one pod at a time can use these networks: a second one does not start.",
		Cure:        "Name another NIC in one of the networks. If the networks are for different pods that do not run at the same time, ignore this rule (--ignore CNI-DEVICE).",
		Check:       checkSameDevice,
	},
	{
		ID: "CNI-NIC", Scope: ConfigScope, Severity: Warn,
		Expects:     "Each network selects a NIC, and a node has the NIC or the rail that the network names.",
		Consequence: "Each ADD of the network fails: there is no such NIC.",
		Cure:        "railctl nics lists the NICs with all their names, and railctl generate nads writes the networks.",
		Check:       checkSelectedNICs,
	},
	{
		ID: "CNI-MTU", Scope: ConfigScope, Severity: Fail,
		Expects:     "The MTU of a macvlan network is at most the MTU of the NIC below.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Remove \"mtu\" from the network, so that the macvlan gets the NIC's MTU, or raise the NIC's MTU.",
		Check: func(f *Facts, r *Report) {
			byName, ok := mastersForConfigs(f, r)
			if !ok {
				return
			}
			eachPlugin(f, r, func(n *network, p *plugin) {
				if p.macvlan == nil || p.macvlan.Master == "" || p.macvlan.MTU == 0 {
					return
				}
				for _, nic := range byName[p.macvlan.Master] {
					r.judged()
					if mtu, ok := Read(r, nic.label()+" mtu", nic.MTU); ok && p.macvlan.MTU > mtu {
						r.Find(n.config.Object(), "its mtu is %d, and that of %s is %d", p.macvlan.MTU, p.macvlan.Master, mtu)
						return
					}
				}
			})
		},
	},
	{
		ID: "IB-NAD-PKEY", Scope: ConfigScope, Severity: Fail,
		Expects:     "The port that an ipoib network names is a member of the network's partition.",
		Consequence: "Each ADD of the network fails on that node until the port is a member.",
		Cure:        "Make the port a member in the subnet manager's partitions, or correct \"pkey\".",
		Check: func(f *Facts, r *Report) {
			eachIPoIBPort(f, r, func(n *network, p *plugin, nic *NIC, port *Port) {
				if p.ipoib.PKey == 0 {
					return
				}
				keys, ok := Read(r, port.Device+" pkeys", port.PKeys)
				if !ok {
					return
				}
				r.judged()
				if !slices.ContainsFunc(keys, func(k PKey) bool { return p.ipoib.PKey == partitionOf(k.Key) }) {
					r.Find(n.config.Object(), "port %d of %s (%s) is not a member of partition %#x", port.Port, port.Device, nic.label(), p.ipoib.PKey)
				}
			})
		},
	},
	{
		ID: "IB-MTU", Scope: ConfigScope, Severity: Warn,
		Expects:     "An ipoib network in its master's partition has an MTU of at most the master's MTU, which the partition's multicast group limits.",
		Consequence: "The pods' interfaces have the smaller MTU. Above the port's own maximum each ADD fails.",
		Cure:        "Remove \"mtu\" from the network. Or raise the group's MTU in the subnet manager's partitions (mtu=5 is 4096 bytes), and restart the subnet manager.",
		Check: func(f *Facts, r *Report) {
			eachIPoIBPort(f, r, func(n *network, p *plugin, nic *NIC, port *Port) {
				if p.ipoib.MTU == 0 {
					return
				}
				mtu, ok := Read(r, nic.label()+" mtu", nic.MTU)
				keys, known := Read(r, port.Device+" pkeys", port.PKeys)
				// The master's own partition is that at index 0. In connected mode its MTU is not the group's.
				own := known && len(keys) > 0 && (p.ipoib.PKey == 0 || p.ipoib.PKey == partitionOf(keys[0].Key))
				if !ok || !own || mtu > netconf.MaxDatagram {
					return
				}
				r.judged()
				if p.ipoib.MTU > mtu {
					r.Find(n.config.Object(), "its mtu is %d, and that of %s is %d", p.ipoib.MTU, nic.label(), mtu)
				}
			})
		},
	},
	{
		ID: "CNI-RESOURCE", Scope: ConfigScope, Severity: Warn,
		Expects:     "The resource that a NetworkAttachmentDefinition names (k8s.v1.cni.cncf.io/resourceName) is offered by one of the known device pools.",
		Consequence: "Pods that request the resource stay Pending, and Multus passes no device to the network.",
		Cure:        "Correct the annotation or the pool's name; perRail pools have one resource for each rail, NAME_rail_0.",
		Check:       checkResources,
	},
	{
		ID: "CNI-ANNOTATION", Scope: ConfigScope, Severity: Fail, API: true,
		Expects:     "A pod that asks for networks does so by the annotation k8s.v1.cni.cncf.io/networks.",
		Consequence: "Multus ignores other keys. The pod starts without its rails, and no Event says so.",
		Cure:        "Rename the key in the pod's template, and create the pod again.",
		Check:       checkRequests,
	},
	{
		ID: "IPAM-RAILS", Scope: ConfigScope, Severity: Fail,
		Expects:     "A network with ${rail} has valid addresses for each rail: ranges that do not overlap, gateways within them, and with sameHost ranges of equal size. A network with sameHost has a block_size or the local store.",
		Consequence: "An ADD on such a rail fails.",
		Cure:        "Put ${rail} into the network part of the range, as in 10.${rail}.0.0/16, and into the gateway (docs/guide/rails.md). Give a network with sameHost a block_size.",
		Check: func(f *Facts, r *Report) {
			eachPlugin(f, r, func(n *network, p *plugin) {
				if p.common != nil && p.common.Varies() {
					r.judged()
				}
				if p.railErr != nil {
					r.Find(n.config.Object(), "%s", p.railErr)
				}
				for i := range p.addresses {
					conf := p.addresses[i].conf
					if n.config.Kind != NADConfig || conf.Store == netconf.StoreLocal {
						break // without Kubernetes the store is the local one
					}
					if err := conf.CheckEntryByEntry(); err != nil {
						r.Find(n.config.Object(), "%s", err)
						break
					}
				}
			})
		},
	},
	{
		ID: "IPAM-GW", Scope: ConfigScope, Severity: Fail,
		Expects:     "No pool gives the address of its gateway to a pod.",
		Consequence: "The pod has the router's address: the traffic of all pods on the rail goes to that pod, or is lost.",
		Cure:        "Remove allow_gateway, or add the gateway to \"exclude\". whereabouts of rail-cni never assigns the gateway; upstream's does.",
		Check:       checkGateways,
	},
	{
		ID: "IPAM-GWNET", Scope: ConfigScope, Severity: Warn,
		Expects:     "The gateway of a network is in the subnet of its range.",
		Consequence: "The pod cannot reach the gateway, and the kernel refuses routes through it.",
		Cure:        "Correct \"gateway\" or \"range\".",
		Check: func(f *Facts, r *Report) {
			eachPool(f, r, func(n *network, _ *plugin, p *pool) {
				gateway, near, outside := p.conf.Gateway, false, netip.Prefix{}
				for _, c := range p.conf.Ranges {
					if c.Prefix.Addr().BitLen() == gateway.BitLen() {
						near, outside = near || c.Prefix.Contains(gateway), c.Prefix
					}
				}
				if !gateway.IsValid() || !outside.IsValid() {
					return
				}
				r.judged()
				if !near {
					r.Find(n.config.Object(), "the gateway %s is not in %s", gateway, outside)
				}
			})
		},
	},
	{
		ID: "IPAM-GWROUTE", Scope: ConfigScope, Severity: Warn,
		Expects:     "If pods need the gateway of a network, the network has routes or its own table (routing mode source). Pods need it if each node has its own subnet, or if the node file has \"fabric: routed\".",
		Consequence: "The gateway has no effect: on this rail the pod reaches only its own subnet, and no pod of another node or rail.",
		Cure:        "Add \"routes\" to \"ipam\", or \"routing\": {\"mode\": \"source\"} to the network; or remove the gateway.",
		Check:       checkGatewayRoutes,
	},
	{
		ID: "IPAM-EMPTY", Scope: ConfigScope, Severity: Fail,
		Expects:     "Each range has an address to assign.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Use a larger range, or exclude less of it.",
		Check: func(f *Facts, r *Report) {
			eachPool(f, r, func(n *network, _ *plugin, p *pool) {
				r.judged()
				ranges, err := p.ranges()
				if err != nil {
					r.Find(n.config.Object(), "%s", err)
				}
				for _, one := range ranges {
					if _, some := one.Next(one.First()); !some {
						r.Find(n.config.Object(), "all of %s is excluded", one.Prefix())
					}
				}
			})
		},
	},
	{
		ID: "IPAM-OVERLAP", Scope: ConfigScope, Severity: Warn,
		Expects:     "The ranges of two pools do not overlap.",
		Consequence: "A pod with both networks has two routes to the same address. With \"store\": \"local\", or with enable_overlapping_ranges false, two pods can get the same address.",
		Cure:        "Give each network its own range, or give both the same range, which makes one pool. If the networks are not connected, set network_name.",
		Check:       checkOverlaps,
	},
	{
		ID: "IPAM-NETS", Scope: ConfigScope, Severity: Fail,
		Expects:     "No range overlaps with the networks of the cluster: pods, services, nodes.",
		Consequence: "Pods with the network do not reach these pods, services or nodes: the packets to them leave by the rail.",
		Cure:        "Use another range.",
		Check:       checkClusterNetworks,
	},
	{
		ID: "NODE-FILE", Scope: ConfigScope, Severity: Fail,
		Expects:     "The node file can be read, and has no unknown key.",
		Consequence: "No plugin lends a NIC on the node: if only a part of the file were used, a NIC that the file forbids could be lent.",
		Cure:        "Correct the key or value that the evidence names; docs/reference/node-file.md has all keys.",
		Check: func(f *Facts, r *Report) {
			eachConfig(f, r, NodeFile, func(c *Config) {
				r.judged()
				if _, err := nodefile.Parse([]byte(c.Text)); err != nil {
					r.Find(c.Object(), "%s", err)
				}
			})
		},
	},
	{
		ID: "DP-CONFIG", Scope: ConfigScope, Severity: Fail,
		Expects:     "The configurations of device plugins (k8s-rdma-shared-dev-plugin, sriov-network-device-plugin) can be read.",
		Consequence: "The device plugin does not start, or rail-agent does not use the pools of the file.",
		Cure:        "Correct what the evidence names.",
		Check: func(f *Facts, r *Report) {
			eachDevicePlugin(f, r, func(c *Config, _ *resource.Config, err error) {
				r.judged()
				if err != nil {
					r.Find(c.Object(), "%s", err)
				}
			})
		},
	},
	{
		ID: "DP-KEY", Scope: ConfigScope, Severity: Warn,
		Expects:     "Each key in the configurations of device plugins has an effect.",
		Consequence: "A misspelled selector selects nothing, or more NICs than intended.",
		Cure:        "Correct the key, or remove it.",
		Check: func(f *Facts, r *Report) {
			eachDevicePlugin(f, r, func(c *Config, conf *resource.Config, err error) {
				if err != nil {
					return
				}
				r.judged()
				for _, w := range conf.Warnings {
					r.Find(c.Object(), "%s", w.Message)
				}
			})
		},
	},
	{
		ID: "DP-IFNAMES", Scope: ConfigScope, Severity: Fail,
		Expects:     "Each name in ifNames of a device pool is the name of a NIC.",
		Consequence: "The resource has fewer devices than intended, or none. k8s-rdma-shared-dev-plugin also loses NICs while they are in pods, and knows no alternative names.",
		Cure:        "Use the names that railctl nics prints, or select NICs by properties that do not change (vendors, drivers, rails).",
		Check:       checkIfNames,
	},
}

// first reports whether the pool is the first of the plugin's: findings that hold for each
// rail are told once.
func (p *pool) first(of *plugin) bool { return p == &of.addresses[0] }

// eachPool calls do for each pool of addresses of the networks.
func eachPool(f *Facts, r *Report, do func(*network, *plugin, *pool)) {
	eachPlugin(f, r, func(n *network, p *plugin) {
		for i := range p.addresses {
			do(n, p, &p.addresses[i])
		}
	})
}

func eachDevicePlugin(f *Facts, r *Report, do func(*Config, *resource.Config, error)) {
	eachConfig(f, r, SharedConfig, func(c *Config) {
		conf, err := resource.ParseSharedDevicePlugin([]byte(c.Text))
		do(c, conf, err)
	})
	eachConfig(f, r, SRIOVConfig, func(c *Config) {
		conf, err := resource.ParseSRIOVDevicePlugin([]byte(c.Text))
		do(c, conf, err)
	})
}

// eachPoolConfig calls do for each device pool, of the node file and of device plugins.
func eachPoolConfig(f *Facts, r *Report, do func(*Config, *resource.PoolConfig)) {
	each := func(c *Config, conf *resource.Config) {
		for i := range conf.PoolConfigs {
			do(c, &conf.PoolConfigs[i])
		}
	}
	eachDevicePlugin(f, r, func(c *Config, conf *resource.Config, err error) {
		if err == nil {
			each(c, conf)
		}
	})
	eachConfig(f, r, NodeFile, func(c *Config) {
		if file, err := nodefile.Parse([]byte(c.Text)); err == nil && file.Resources != nil {
			each(c, file.Resources)
		}
	})
}

// foreignKeys are keys that the runtime, libcni or Multus reads rather than the plugin.
var foreignKeys = []string{"capabilities", "args", "cniVersions", "disableCheck", "disableGC", "runtimeConfig", "ipam", "dns"}

// unknownKeys returns a sentence for each key that the plugin does not know.
func (p *plugin) unknownKeys() []string {
	var conf map[string]json.RawMessage
	if p.kind == "" || json.Unmarshal(p.raw, &conf) != nil {
		return nil
	}
	known := append(netconf.Keys(p.kind), foreignKeys...)
	found := unknownIn("", conf, known)
	for name, raw := range conf {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			continue
		}
		switch {
		case strings.EqualFold(name, "ipam") && p.common != nil && strings.HasSuffix(p.common.IPAM.Type, whereabouts):
			found = append(found, unknownIn("ipam.", object, netconf.Keys("whereabouts"))...)
		case strings.EqualFold(name, "runtimeConfig"):
			found = append(found, unknownIn("runtimeConfig.", object, append(below("runtimeConfig", netconf.Keys(p.kind)), "portMappings", "bandwidth", "infinibandGUID"))...)
		}
	}
	slices.Sort(found)
	return found
}

// below returns the keys of an object, without its name.
func below(object string, keys []string) []string {
	var all []string
	for _, key := range keys {
		if rest, ok := strings.CutPrefix(key, object+"."); ok {
			all = append(all, rest)
		}
	}
	return all
}

// unknownIn returns a sentence for each key of the object that is not known. As in
// encoding/json, the case of keys does not matter. Of keys of objects and lists the name
// before the first dot counts.
func unknownIn(where string, object map[string]json.RawMessage, known []string) []string {
	tops := map[string]bool{}
	for _, key := range known {
		top, _, _ := strings.Cut(strings.ReplaceAll(key, "[]", ""), ".")
		tops[top] = true
	}
	names := slices.Sorted(maps.Keys(tops))
	var found []string
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if strings.HasPrefix(key, "cni.dev/") || slices.ContainsFunc(names, func(k string) bool { return strings.EqualFold(k, key) }) {
			continue
		}
		found = append(found, fmt.Sprintf("the key %q is unknown: %s", where+key, resource.Suggestion(key, names)))
	}
	return found
}

func checkTypes(f *Facts, r *Report) {
	eachNetwork(f, r, func(n *network) {
		for i := range n.plugins {
			p := &n.plugins[i]
			r.judged()
			if near := resource.OneLetterFrom(p.name, kinds); p.kind == "" && near != "" {
				r.Find(n.config.Object(), "the type %q is unknown: did you mean %q?", p.name, near)
			}
			if near := resource.OneLetterFrom(p.ipamType(), []string{whereabouts}); near != "" {
				r.Find(n.config.Object(), "%s: the type %q of ipam is unknown: did you mean %q?", p.name, p.ipamType(), near)
			}
		}
	})
}

func checkNetworkModes(f *Facts, r *Report) {
	if f.Host == nil || f.Configs == nil {
		return
	}
	mode, ok := Read(r, "rdmaMode", f.Host.RDMAMode)
	eachNetwork(f, r, func(n *network) {
		follows := slices.ContainsFunc(n.plugins, func(p plugin) bool { return p.kind == "rdma" || p.name == "rdma" })
		for i := range n.plugins {
			p := &n.plugins[i]
			rdma := p.sharedRDMA()
			if p.macvlan != nil || p.ipoib != nil || p.name == "sriov" {
				r.judged()
			}
			switch {
			case !ok || mode != "exclusive" || p.err != nil:
			case rdma == netconf.RDMARequired:
				r.Find(n.config.Object(), "the RDMA mode is exclusive, and %s has \"rdma\": \"required\"", p.name)
			case rdma == netconf.RDMAAuto && n.config.Resource != "":
				r.Find(n.config.Object(), "the RDMA mode is exclusive, and %s is used with the resource %s", p.name, n.config.Resource)
			case p.name == "sriov" && !follows && !f.isOurs(p.name):
				r.Find(n.config.Object(), "the RDMA mode is exclusive, and rdma does not follow sriov")
			}
		}
	})
}

// isOurs reports whether the plugin installed under this name is rail-cni's and not another project's.
func (f *Facts) isOurs(plugin string) bool {
	if f.CNI == nil {
		return false
	}
	// Without the fact the plugin is taken for another project's, so Read, which reports a missing fact, is not used.
	return slices.ContainsFunc(f.CNI.Binaries.Value, func(b Binary) bool { return b.RailCNI && filepath.Base(b.Path) == plugin })
}

// selected returns what the plugin selects its NIC by on the host, "" for a rail or a device
// of the kubelet.
func (p *plugin) selected() string {
	switch {
	case p.hostDevice != nil && p.hostDevice.Device != "":
		return p.hostDevice.Device
	case p.hostDevice != nil && p.hostDevice.HWAddr == "" && p.hostDevice.KernelPath == "":
		return p.hostDevice.PCIBusID
	case p.macvlan != nil && !p.macvlan.LinkInContainer:
		return p.macvlan.Master
	case p.ipoib != nil:
		return p.ipoib.Master
	}
	return ""
}

// sharedRDMA returns the key "rdma" of a plugin whose pods share a NIC of the host, "" for another.
func (p *plugin) sharedRDMA() string {
	switch {
	case p.macvlan != nil && !p.macvlan.LinkInContainer:
		return p.macvlan.RDMA.RDMA
	case p.ipoib != nil:
		return p.ipoib.RDMA.RDMA
	}
	return ""
}

// takesNIC reports whether the plugin lends a NIC, or makes a child interface on one.
func (p *plugin) takesNIC() bool { return p.hostDevice != nil || p.macvlan != nil || p.ipoib != nil }

// policy returns what the plugin has about routes.
func (p *plugin) policy() netconf.RoutingPolicy {
	switch {
	case p.hostDevice != nil:
		return p.hostDevice.Policy
	case p.macvlan != nil:
		return p.macvlan.Policy
	case p.ipoib != nil:
		return p.ipoib.Policy
	}
	return netconf.RoutingPolicy{}
}

// eachIPoIBPort calls do with the InfiniBand ports that each ipoib network names by its master.
func eachIPoIBPort(f *Facts, r *Report, do func(*network, *plugin, *NIC, *Port)) {
	byName, ok := nicsForConfigs(f, r)
	if !ok {
		return
	}
	eachPlugin(f, r, func(n *network, p *plugin) {
		if p.ipoib == nil {
			return
		}
		for _, nic := range byName[p.ipoib.Master] {
			ports, _ := Read(r, nic.label()+" ports", nic.Ports)
			for i := range ports {
				if ports[i].LinkLayer == InfiniBand {
					do(n, p, nic, &ports[i])
				}
			}
		}
	})
}

// selectsNone reports whether the plugin is host-device, and has nothing that selects a NIC.
func (p *plugin) selectsNone() bool {
	h := p.hostDevice
	return h != nil && h.Device == "" && h.HWAddr == "" && h.KernelPath == "" && len(h.IDs()) == 0 && h.Rail.Number == nil
}

// rail returns the rail that the NIC must have.
func (p *plugin) rail() netconf.Rail {
	switch {
	case p.hostDevice != nil:
		return p.hostDevice.Rail
	case p.macvlan != nil:
		return p.macvlan.Rail
	case p.ipoib != nil:
		return p.ipoib.Rail
	}
	return netconf.Rail{}
}

func checkSameDevice(f *Facts, r *Report) {
	byName := map[string][]*NIC{}
	if f.NICs != nil || f.Cluster != nil {
		byName, _ = mastersForConfigs(f, r)
	}
	type user struct {
		object, namespace string
		lends             bool
	}
	users := map[string][]user{}
	eachPlugin(f, r, func(n *network, p *plugin) {
		name := p.selected()
		if name == "" {
			return
		}
		if nics := byName[name]; len(nics) > 0 { // one NIC can have several names
			name = cmp.Or(nics[0].PCI, nics[0].Name)
		}
		r.judged()
		namespace, _, _ := strings.Cut(n.config.Name, "/")
		users[name] = append(users[name], user{n.config.Object(), namespace, p.hostDevice != nil})
	})
	for _, name := range slices.Sorted(maps.Keys(users)) {
		lender := map[string]string{} // by namespace
		first := ""
		for _, u := range users[name] {
			if !u.lends {
				continue
			}
			if other := lender[u.namespace]; other != "" {
				r.Find(u.object, "it lends %s, as %s does", name, other)
			}
			lender[u.namespace], first = u.object, cmp.Or(first, u.object)
		}
		for _, u := range users[name] {
			if first != "" && !u.lends {
				r.Find(u.object, "its child interfaces lie on %s, which %s lends", name, first)
			}
		}
	}
}

func checkSelectedNICs(f *Facts, r *Report) {
	byName, have := map[string][]*NIC(nil), false
	if f.NICs != nil || f.Cluster != nil {
		if byName, have = mastersForConfigs(f, r); !have && f.NICs != nil && !f.NICs.List.OK() {
			return
		}
	}
	rails := map[int]bool{}
	for _, n := range knownNICs(f) {
		if n.Rail != nil {
			rails[*n.Rail] = true
		}
	}
	eachPlugin(f, r, func(n *network, p *plugin) {
		if p.selectsNone() && n.config.Resource == "" {
			r.Find(n.config.Object(), "%s selects no NIC: it has neither a device nor a rail, and the NetworkAttachmentDefinition no resource", p.name)
			return
		}
		rail := p.rail()
		if p.takesNIC() {
			r.judged()
		}
		if name := p.selected(); have && name != "" && byName[name] == nil {
			near := ""
			for _, other := range slices.Sorted(maps.Keys(byName)) {
				if strings.EqualFold(other, name) {
					near = "; there is " + other
				}
			}
			r.Find(n.config.Object(), "no NIC is called %s%s", name, near)
		}
		if have && rail.Number != nil && !rails[*rail.Number] {
			r.Find(n.config.Object(), "no NIC has the rail %d", *rail.Number)
		}
	})
}

func checkResources(f *Facts, r *Report) {
	names := map[string]resource.Mode{}
	eachPoolConfig(f, r, func(_ *Config, p *resource.PoolConfig) { names[p.Name] = p.Mode })
	if len(names) == 0 {
		return // the pools are not at hand
	}
	eachConfig(f, r, NADConfig, func(c *Config) {
		if c.Resource == "" {
			return
		}
		r.judged()
		for name, mode := range names {
			if c.Resource == name && mode != resource.PerRail || mode == resource.PerRail && strings.HasPrefix(c.Resource, name+"_rail_") {
				return
			}
		}
		r.Find(c.Object(), "no pool has the resource %s; there are %s", c.Resource, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
	})
}

func checkGateways(f *Facts, r *Report) {
	foreign := map[string]bool{} // names of programs on the node that are not rail-cni's
	if f.CNI != nil {
		binaries, _ := Read(r, "plugins", f.CNI.Binaries)
		for i := range binaries {
			if b := &binaries[i]; !b.RailCNI && b.Installed == "" { // CNI-BINARY has a plugin that was replaced
				foreign[path.Base(b.Path)] = true
			}
		}
	}
	eachPool(f, r, func(n *network, by *plugin, p *pool) {
		name := by.common.IPAM.Type
		if len(p.conf.Gateways()) > 0 {
			r.judged()
		}
		if !p.conf.AllowGateway && !foreign[name] {
			return
		}
		open := *p.conf
		open.AllowGateway = false
		ranges, _ := p.ranges() // IPAM-EMPTY has the error
		for _, gateway := range open.Gateways() {
			for _, one := range ranges {
				if one.Why(gateway) == "" {
					why := "allow_gateway is true"
					if !p.conf.AllowGateway {
						why = name + " on the node is not rail-cni's"
					}
					r.Find(n.config.Object(), "the gateway %s is an address of the range %s, and %s", gateway, one.Prefix(), why)
				}
			}
		}
	})
}

// checkGatewayRoutes judges the networks whose pods need their gateway. Where all pods of a rail
// are in one subnet, "gateway" keeps the router's address free, and does nothing else.
func checkGatewayRoutes(f *Facts, r *Report) {
	routed := false
	eachConfig(f, r, NodeFile, func(c *Config) {
		file, err := nodefile.Parse([]byte(c.Text)) // NODE-FILE has the error
		routed = routed || err == nil && file.Fabric == nodefile.FabricRouted
	})
	eachPool(f, r, func(n *network, p *plugin, pool *pool) {
		source := p.policy().Mode == netconf.RoutingSource
		ofNode := p.byPrefix() || strings.Contains(string(p.raw), "${node}")
		if pool.conf.Gateway.IsValid() {
			r.judged()
		}
		if pool.conf.Gateway.IsValid() && len(pool.conf.Routes) == 0 && !source && (routed || ofNode) && (pool.rail == nil || pool.first(p)) {
			r.Find(n.config.Object(), "it has the gateway %s and no routes", pool.conf.Gateway)
		}
	})
}

// spans returns what the pools of all networks assign. Equal ones, of one pool, are there
// once.
func spans(f *Facts, r *Report) []span {
	var all []span
	seen := map[span]bool{}
	eachPool(f, r, func(n *network, _ *plugin, p *pool) {
		ranges, _ := p.ranges() // IPAM-EMPTY has the error
		for _, one := range ranges {
			s := span{Range: iprange.Range{First: one.First(), Last: one.Last()}, prefix: one.Prefix(), space: p.conf.NetworkName}
			if !seen[s] {
				seen[s] = true
				s.owner = n.config.Object()
				all = append(all, s)
			}
		}
	})
	slices.SortStableFunc(all, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.space, b.space), a.First.Compare(b.First), b.Last.Compare(a.Last))
	})
	return all
}

func checkOverlaps(f *Facts, r *Report) {
	all := spans(f, r)
	if len(all) > 1 {
		r.judged() // they are compared
	}
	var furthest *span // of those before, which overlaps with the next one if any does
	for i := range all {
		s := &all[i]
		if furthest == nil || furthest.space != s.space || furthest.First.BitLen() != s.First.BitLen() {
			furthest = s
			continue
		}
		// Ranges with one prefix are in one pool, which assigns an address once.
		if furthest.prefix != s.prefix && s.Overlaps(furthest.Range) {
			r.Find(s.owner, "its addresses %s-%s overlap with %s-%s of %s", s.First, s.Last, furthest.First, furthest.Last, furthest.owner)
		}
		if furthest.Last.Less(s.Last) {
			furthest = s
		}
	}
}

// clusterNetworks are the keys of [Configs.Networks], with the reasons why one can be missing.
var clusterNetworks = map[string]string{
	"nodes":    "no node has an InternalIP",
	"pods":     "no node has a podCIDR: the network plugin assigns addresses by itself",
	"services": "the API server lists no servicecidrs: it is older than Kubernetes 1.33, or the right to list them is missing",
}

func checkClusterNetworks(f *Facts, r *Report) {
	ranges := spans(f, r)
	if len(ranges) == 0 || !f.Configs.Networks.asked() {
		return
	}
	networks, ok := Read(r, "networks of the cluster", f.Configs.Networks)
	for _, by := range slices.Sorted(maps.Keys(clusterNetworks)) {
		if ok && len(networks[by]) == 0 {
			r.lacks("network of the cluster's "+by, clusterNetworks[by])
		}
	}
	type used struct {
		by     string
		prefix netip.Prefix
	}
	var all []used
	for _, by := range slices.Sorted(maps.Keys(networks)) {
		for _, text := range networks[by] {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, used{by, p.Masked()})
			}
		}
	}
	for _, s := range ranges {
		r.judged()
		for _, u := range all {
			if u.prefix.Overlaps(s.prefix) {
				r.Find(s.owner, "its range %s overlaps with %s, the network of the cluster's %s", s.prefix, u.prefix, u.by)
			}
		}
	}
}

func checkIfNames(f *Facts, r *Report) {
	if f.NICs == nil && f.Cluster == nil {
		return
	}
	byName, ok := nicsForConfigs(f, r)
	if !ok {
		return
	}
	eachPoolConfig(f, r, func(c *Config, p *resource.PoolConfig) {
		for i := range p.Select {
			for _, name := range p.Select[i].IfNames {
				nics := byName[name]
				r.judged()
				switch {
				case len(nics) == 0:
					r.Find(c.Object(), "resource %s: no NIC is called %s", p.Name, name)
				case c.Kind == SharedConfig && !slices.ContainsFunc(nics, func(n *NIC) bool { return n.Name == name }):
					r.Find(c.Object(), "resource %s: %s is an alternative name of %s, which k8s-rdma-shared-dev-plugin does not know", p.Name, name, nics[0].Name)
				}
			}
		}
	})
}

// NetworksKey is the annotation by which a pod asks Multus for networks.
const NetworksKey = "k8s.v1.cni.cncf.io/networks"

func checkRequests(f *Facts, r *Report) {
	if f.Configs == nil || !f.Configs.Requests.asked() {
		return
	}
	pods, _ := Read(r, "annotations of pods", f.Configs.Requests)
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		r.judged()
		if !slices.Contains(pods[pod], NetworksKey) {
			r.Find("pod "+pod, "it has the annotation %s, not %s", strings.Join(pods[pod], ", "), NetworksKey)
		}
	}
}
