package configs

import (
	"cmp"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return configRules }

var configRules = []rule.Rule{
	{
		ID: "CNI-NAD", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "Each plugin can read its configuration in the NetworkAttachmentDefinitions that name the plugin.",
		Consequence: "Each ADD of the network fails, and the network's pods stay in ContainerCreating.",
		Cure:        "Correct the key or value that the evidence names. docs/reference/keys.md lists all keys.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachNetwork(f, r, func(n *network.Network) {
				r.Judged()
				if n.Err != nil {
					r.Find(n.Config.Object(), "%s", n.Err)
				}
				for i := range n.Plugins {
					if err := cmp.Or(n.Plugins[i].Err, n.Plugins[i].IPAMErr); err != nil {
						r.Find(n.Config.Object(), "%s: %s", n.Plugins[i].Type, err)
					}
				}
			})
		},
	},
	{
		ID: "CNI-TYPE", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "No network misspells the type of a rail-cni plugin or IPAM plugin by one letter.",
		Consequence: "The runtime looks for a plugin with the misspelled name, so each ADD of the network fails. The other rules do not check the plugin's configuration, because they do not know the type.",
		Cure:        "Correct the type. If another project really has a plugin with that name, ignore this rule (--ignore CNI-TYPE).",
		Check:       checkTypes,
	},
	{
		ID: "CNI-FOREIGN-TYPE", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects: "Each node on which pods of a network can run has a plugin of the network's type. If the network has keys that only rail-cni's plugins read, this plugin is rail-cni's. " +
			"The rule does not check nodes without any plugin of rail-cni.",
		Consequence: "If there is no such plugin, each ADD of the network fails. If the plugin is another project's, it ignores or refuses the keys.",
		Cure: "Install rail-cni's plugin (plugins.names in the chart, or rail-agent run --install --plugins). By default sriov, ib-sriov and ipoib are not installed. " +
			"Or, if the network can do without these keys, remove them from the network.",
		Check: checkForeignTypes,
	},
	{
		ID: "CNI-KEY", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "A network has no key that its plugins do not know.",
		Consequence: "Plugins ignore unknown keys, so a misspelled key has no effect.",
		Cure:        "Correct or remove the key. docs/reference/keys.md lists all keys.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachNetwork(f, r, func(n *network.Network) {
				for i := range n.Plugins {
					r.Judged()
					for _, text := range unknownKeys(&n.Plugins[i]) {
						r.Find(n.Config.Object(), "%s: %s", n.Plugins[i].Type, text)
					}
				}
			})
		},
	},
	{
		ID: "CNI-VERSION", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "A network names a CNI version that the plugins support. A network with a list of plugins names 0.3.0 or newer.",
		Consequence: "The runtime or the plugin refuses the configuration.",
		Cure:        "Write \"cniVersion\": \"1.0.0\".",
		Check: func(f *fact.Facts, r *rule.Report) {
			known := version.All.SupportedVersions()
			subject.EachNetwork(f, r, func(n *network.Network) {
				r.Judged()
				switch v := cmp.Or(n.Version, "0.1.0"); {
				case n.Err != nil:
				case !slices.Contains(known, v):
					r.Find(n.Config.Object(), "cniVersion is %q, but the plugins support only %s", v, strings.Join(known, ", "))
				case n.List && slices.Index(known, v) < slices.Index(known, "0.3.0"):
					r.Find(n.Config.Object(), "the network has a list of plugins, but cniVersion is %s", v)
				}
			})
		},
	},
	{
		ID: "CNI-NETSTATUS", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "A network names the CNI version 0.3.0 or newer. From this version on, a plugin's result names the interface.",
		Consequence: "Multus writes no entry for the network into the pod's network-status, so programs that read network-status do not find the rail. If whereabouts' own reconciler runs, it frees the address although the pod still runs.",
		Cure:        "Write \"cniVersion\": \"1.0.0\". A network without the key has version 0.1.0.",
		Check: func(f *fact.Facts, r *rule.Report) {
			known := version.All.SupportedVersions()
			subject.EachNetwork(f, r, func(n *network.Network) {
				r.Judged()
				v := cmp.Or(n.Version, "0.1.0")
				if i := slices.Index(known, v); n.Err == nil && !n.List && i >= 0 && i < slices.Index(known, "0.3.0") {
					r.Find(n.Config.Object(), "its CNI version is %s, whose results do not name the interface", v)
				}
			})
		},
	},
	{
		ID: "CNI-CHAIN", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "In a list of plugins, the plugin that makes the interface (host-device, macvlan or ipoib) comes first and occurs once. The plugin rdma comes after it.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Put the plugin that makes the interface first. If that plugin is rail-cni's host-device, macvlan or ipoib, you can remove rdma: it is not needed.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachNetwork(f, r, func(n *network.Network) {
				for i := range n.Plugins {
					if n.Plugins[i].Kind != "" {
						r.Judged()
					}
					switch p := &n.Plugins[i]; {
					case p.Kind == "rdma" && i == 0:
						r.Find(n.Config.Object(), "%s is the first plugin, but works only after the plugin that makes the interface", p.Type)
					case p.Kind != "" && p.Kind != "rdma" && i > 0:
						r.Find(n.Config.Object(), "%s makes the interface, but comes after %s", p.Type, n.Plugins[i-1].Type)
					}
				}
			})
		},
	},
	{
		ID: "CNI-MODE", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "The networks fit the node's RDMA mode. In exclusive mode no macvlan network requires RDMA, and a network with another project's plugin sriov has the plugin rdma after sriov.",
		Consequence: "The pod has an interface, but no RDMA device. With \"rdma\": \"required\" each ADD fails instead.",
		Cure:        "To keep exclusive mode, lend whole NICs with host-device instead of macvlan, and put the plugin rdma after sriov-cni's sriov. Or set the mode to shared (docs/guide/rdma-modes.md). Or, if the network needs no RDMA, write \"rdma\": \"off\" into it.",
		Check:       checkNetworkModes,
	},
	{
		ID: "CNI-DEVICE", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "No two networks of a namespace lend the same NIC, and no macvlan network uses a NIC that another network lends.",
		Consequence: "Only one pod at a time can use these networks. A second pod does not start.",
		Cure:        "Name another NIC in one of the networks. If the pods of these networks never run at the same time, ignore this rule (--ignore CNI-DEVICE).",
		Check:       checkSameDevice,
	},
	{
		ID: "CNI-NIC", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "Each network selects a NIC. If the network names a NIC or a rail, at least one node has it.",
		Consequence: "Each ADD of the network fails, because the plugin finds no NIC.",
		Cure:        "Correct the NIC or the rail in the network. railctl nics lists the NICs with all their names. railctl generate nads writes networks that fit the node.",
		Check:       checkSelectedNICs,
	},
	{
		ID: "CNI-MTU", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "The MTU of a macvlan network is at most the MTU of the NIC on which the macvlan lies.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Remove \"mtu\" from the network, so that the macvlan gets the NIC's MTU, or raise the NIC's MTU.",
		Check: func(f *fact.Facts, r *rule.Report) {
			byName, ok := mastersForConfigs(f, r)
			if !ok {
				return
			}
			subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
				if p.Macvlan == nil || p.Macvlan.Master == "" || p.Macvlan.MTU == 0 {
					return
				}
				for _, nic := range byName[p.Macvlan.Master] {
					r.Judged()
					if mtu, ok := rule.Read(r, nic.Label()+" mtu", nic.MTU); ok && p.Macvlan.MTU > mtu {
						r.Find(n.Config.Object(), "its mtu is %d, but the MTU of %s is %d", p.Macvlan.MTU, p.Macvlan.Master, mtu)
						return
					}
				}
			})
		},
	},
	{
		ID: "IB-NAD-PKEY", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "The InfiniBand port that an ipoib network names is a member of the network's partition.",
		Consequence: "On this node each ADD of the network fails until the port is a member of the partition.",
		Cure:        "Make the port a member of the partition in the subnet manager's configuration, or correct \"pkey\" in the network.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachIPoIBPort(f, r, func(n *network.Network, p *network.Plugin, nic *fact.NIC, port *fact.Port) {
				if p.IPoIB.PKey == 0 {
					return
				}
				keys, ok := rule.Read(r, port.Device+" pkeys", port.PKeys)
				if !ok {
					return
				}
				r.Judged()
				if !slices.ContainsFunc(keys, func(k fact.PKey) bool { return p.IPoIB.PKey == partitionOf(k.Key) }) {
					r.Find(n.Config.Object(), "port %d of %s (%s) is not a member of partition %#x", port.Port, port.Device, nic.Label(), p.IPoIB.PKey)
				}
			})
		},
	},
	{
		ID: "IB-MTU", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "If an ipoib network is in its master's partition, its MTU is at most the master's MTU. The partition's multicast group limits the master's MTU.",
		Consequence: "The pods' interfaces get the master's smaller MTU. If the network's MTU is also larger than the port's maximum, each ADD fails.",
		Cure:        "Remove \"mtu\" from the network. Or raise the MTU of the partition's multicast group in the subnet manager's configuration (mtu=5 is 4096 bytes), and restart the subnet manager.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachIPoIBPort(f, r, func(n *network.Network, p *network.Plugin, nic *fact.NIC, port *fact.Port) {
				if p.IPoIB.MTU == 0 {
					return
				}
				mtu, ok := rule.Read(r, nic.Label()+" mtu", nic.MTU)
				keys, known := rule.Read(r, port.Device+" pkeys", port.PKeys)
				// The master's own partition is that at index 0. In connected mode its MTU is not the group's.
				samePartition := known && len(keys) > 0 && (p.IPoIB.PKey == 0 || p.IPoIB.PKey == partitionOf(keys[0].Key))
				if !ok || !samePartition || mtu > netconf.MaxDatagram {
					return
				}
				r.Judged()
				if p.IPoIB.MTU > mtu {
					r.Find(n.Config.Object(), "its mtu is %d, but the MTU of %s is %d", p.IPoIB.MTU, nic.Label(), mtu)
				}
			})
		},
	},
	{
		ID: "CNI-RESOURCE", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "One of the known device pools offers the resource that a NetworkAttachmentDefinition names (annotation k8s.v1.cni.cncf.io/resourceName).",
		Consequence: "Pods that request the resource stay Pending, and Multus passes no device to the network.",
		Cure:        "Correct the annotation or the pool's name. A pool with the mode perRail has one resource for each rail: NAME_rail_0, NAME_rail_1, and so on.",
		Check:       checkResources,
	},
	{
		ID: "CNI-ANNOTATION", Scope: rule.ConfigScope, Severity: rule.Fail, API: true,
		Expects:     "A pod that asks for networks uses the annotation k8s.v1.cni.cncf.io/networks.",
		Consequence: "Multus ignores any other key. The pod starts without its rails, and no Event reports the problem.",
		Cure:        "Rename the annotation in the pod's template, and create the pod again.",
		Check:       checkRequests,
	},
	{
		ID: "IPAM-RAILS", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "A network with ${rail} has valid addresses for each rail. The ranges of its rails do not overlap, and each gateway is in the range of its rail. A network with sameHost has ranges of equal size, and it has a block_size or uses the local store.",
		Consequence: "Each ADD on a rail without valid addresses fails.",
		Cure:        "Put ${rail} into the network part of the range, for example 10.${rail}.0.0/16, and also into the gateway (docs/guide/rails.md). If the network has sameHost, give it a block_size.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
				if p.Common != nil && p.Common.Varies() {
					r.Judged()
				}
				if p.RailErr != nil {
					r.Find(n.Config.Object(), "%s", p.RailErr)
				}
				for i := range p.Pools {
					conf := p.Pools[i].Conf
					if n.Config.Kind != fact.NADConfig || conf.Store == ipamconf.StoreLocal {
						break // without Kubernetes the store is the local one
					}
					if err := conf.CheckEntryByEntry(); err != nil {
						r.Find(n.Config.Object(), "%s", err)
						break
					}
				}
			})
		},
	},
	{
		ID: "IPAM-GW", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "No address pool can assign the address of its gateway to a pod.",
		Consequence: "A pod can get the router's address. Then the traffic of all pods on the rail goes to that pod, or is lost.",
		Cure:        "Remove allow_gateway, or add the gateway to \"exclude\". Without allow_gateway, rail-cni's whereabouts never assigns the gateway, but upstream's whereabouts does.",
		Check:       checkGateways,
	},
	{
		ID: "IPAM-GWNET", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "The gateway of a network is in the subnet of its range.",
		Consequence: "The pod cannot reach the gateway, and the kernel refuses routes through the gateway.",
		Cure:        "Correct \"gateway\" or \"range\".",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachPool(f, r, func(n *network.Network, _ *network.Plugin, p *network.Pool) {
				gateway, near, outside := p.Conf.Gateway, false, netip.Prefix{}
				for _, c := range p.Conf.Ranges {
					if c.Prefix.Addr().BitLen() == gateway.BitLen() {
						near, outside = near || c.Prefix.Contains(gateway), c.Prefix
					}
				}
				if !gateway.IsValid() || !outside.IsValid() {
					return
				}
				r.Judged()
				if !near {
					r.Find(n.Config.Object(), "the gateway %s is not in %s", gateway, outside)
				}
			})
		},
	},
	{
		ID: "IPAM-GWROUTE", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "If pods need the gateway of a network, the network has routes or its own routing table (routing mode source). Pods need the gateway if each node has its own subnet, or if the node file has \"fabric: routed\".",
		Consequence: "The gateway has no effect. On this rail a pod reaches only its own subnet, so it does not reach pods of other nodes or of other rails.",
		Cure:        "Add either \"routes\" to \"ipam\" or \"routing\": {\"mode\": \"source\"} to the network. If pods do not need the gateway, remove it.",
		Check:       checkGatewayRoutes,
	},
	{
		ID: "IPAM-EMPTY", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "Each range has at least one address that can be assigned.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Use a larger range, or exclude fewer of its addresses.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachPool(f, r, func(n *network.Network, _ *network.Plugin, p *network.Pool) {
				r.Judged()
				ranges, err := p.Ranges()
				if err != nil {
					r.Find(n.Config.Object(), "%s", err)
				}
				for _, one := range ranges {
					if _, some := one.Next(one.First()); !some {
						r.Find(n.Config.Object(), "all of %s is excluded", one.Prefix())
					}
				}
			})
		},
	},
	{
		ID: "IPAM-OVERLAP", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "The ranges of two pools do not overlap.",
		Consequence: "A pod with both networks has two routes to the same address. If \"store\" is \"local\" or enable_overlapping_ranges is false, two pods can also get the same address.",
		Cure:        "Give each network its own range. Or give both networks the same range, so that they use one pool. If the networks are not connected, set a different network_name in each.",
		Check:       checkOverlaps,
	},
	{
		ID: "IPAM-NETS", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "No range overlaps with the networks of the cluster: pods, services, nodes.",
		Consequence: "Pods with the network do not reach the pods, services or nodes whose addresses overlap, because packets to these addresses leave by the rail.",
		Cure:        "Use a range that does not overlap with these networks.",
		Check:       checkClusterNetworks,
	},
	{
		ID: "NODE-FILE", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "The node file can be read and has no unknown key.",
		Consequence: "No plugin lends a NIC on the node. The plugins do not use only the readable part of the file, because the unreadable part may forbid a NIC.",
		Cure:        "Correct the key or value that the evidence names. docs/reference/node-file.md lists all keys.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachConfig(f, r, fact.NodeFile, func(c *fact.Config) {
				r.Judged()
				if _, err := nodefile.Parse([]byte(c.Text)); err != nil {
					r.Find(c.Object(), "%s", err)
				}
			})
		},
	},
	{
		ID: "DP-CONFIG", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "Each configuration of a device plugin (k8s-rdma-shared-dev-plugin, sriov-network-device-plugin) can be read.",
		Consequence: "The device plugin does not start. If the node file names the configuration, rail-agent does not use its pools.",
		Cure:        "Correct the mistake that the evidence describes.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachDevicePlugin(f, r, func(c *fact.Config, _ *resource.Config, err error) {
				r.Judged()
				if err != nil {
					r.Find(c.Object(), "%s", err)
				}
			})
		},
	},
	{
		ID: "DP-KEY", Scope: rule.ConfigScope, Severity: rule.Warn,
		Expects:     "Each key in the configuration of a device plugin has an effect.",
		Consequence: "A key without an effect may be misspelled. A misspelled selector selects either nothing or more NICs than intended.",
		Cure:        "Correct or remove the key.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachDevicePlugin(f, r, func(c *fact.Config, conf *resource.Config, err error) {
				if err != nil {
					return
				}
				r.Judged()
				for _, w := range conf.Warnings {
					r.Find(c.Object(), "%s", w.Message)
				}
			})
		},
	},
	{
		ID: "DP-IFNAMES", Scope: rule.ConfigScope, Severity: rule.Fail,
		Expects:     "Each name in ifNames of a device pool is the name of a NIC.",
		Consequence: "The resource has fewer devices than intended, or none. k8s-rdma-shared-dev-plugin does not know alternative names, and it loses a NIC while the NIC is in a pod.",
		Cure:        "Use the names that railctl nics prints. Or select the NICs by properties that do not change (vendors, drivers, rails).",
		Check:       checkIfNames,
	},
}

func eachDevicePlugin(f *fact.Facts, r *rule.Report, do func(*fact.Config, *resource.Config, error)) {
	subject.EachConfig(f, r, fact.SharedConfig, func(c *fact.Config) {
		conf, err := resource.ParseSharedDevicePlugin([]byte(c.Text))
		do(c, conf, err)
	})
	subject.EachConfig(f, r, fact.SRIOVConfig, func(c *fact.Config) {
		conf, err := resource.ParseSRIOVDevicePlugin([]byte(c.Text))
		do(c, conf, err)
	})
}

// eachPoolConfig calls do for each device pool in the node file and in the configurations of device
// plugins.
func eachPoolConfig(f *fact.Facts, r *rule.Report, do func(*fact.Config, *resource.PoolConfig)) {
	each := func(c *fact.Config, conf *resource.Config) {
		for i := range conf.PoolConfigs {
			do(c, &conf.PoolConfigs[i])
		}
	}
	eachDevicePlugin(f, r, func(c *fact.Config, conf *resource.Config, err error) {
		if err == nil {
			each(c, conf)
		}
	})
	subject.EachConfig(f, r, fact.NodeFile, func(c *fact.Config) {
		if file, err := nodefile.Parse([]byte(c.Text)); err == nil && file.Resources != nil {
			each(c, file.Resources)
		}
	})
}

func checkTypes(f *fact.Facts, r *rule.Report) {
	subject.EachNetwork(f, r, func(n *network.Network) {
		for i := range n.Plugins {
			p := &n.Plugins[i]
			r.Judged()
			if near := resource.OneLetterFrom(p.Type, network.Kinds); p.Kind == "" && near != "" {
				r.Find(n.Config.Object(), "the type %q is unknown: did you mean %q?", p.Type, near)
			}
			if near := resource.OneLetterFrom(p.IPAMType(), []string{network.Whereabouts}); near != "" {
				r.Find(n.Config.Object(), "%s: the type %q of ipam is unknown: did you mean %q?", p.Type, p.IPAMType(), near)
			}
		}
	})
}

func checkNetworkModes(f *fact.Facts, r *rule.Report) {
	if f.Host == nil || f.Configs == nil {
		return
	}
	mode, ok := rule.Read(r, "rdmaMode", f.Host.RDMAMode)
	subject.EachNetwork(f, r, func(n *network.Network) {
		follows := slices.ContainsFunc(n.Plugins, func(p network.Plugin) bool { return p.Kind == "rdma" || p.Type == "rdma" })
		for i := range n.Plugins {
			p := &n.Plugins[i]
			rdma := p.SharedRDMA()
			if p.Macvlan != nil || p.IPoIB != nil || p.Type == "sriov" {
				r.Judged()
			}
			switch {
			case !ok || mode != "exclusive" || p.Err != nil:
			case rdma == netconf.RDMARequired:
				r.Find(n.Config.Object(), "the RDMA mode is exclusive, and %s has \"rdma\": \"required\"", p.Type)
			case rdma == netconf.RDMAAuto && n.Config.Resource != "":
				r.Find(n.Config.Object(), "the RDMA mode is exclusive, and %s is used with the resource %s", p.Type, n.Config.Resource)
			case p.Type == "sriov" && !follows && !isOurs(f, p.Type):
				r.Find(n.Config.Object(), "the RDMA mode is exclusive, and rdma does not follow sriov")
			}
		}
	})
}

// isOurs reports whether the plugin that is installed under this name is rail-cni's. It returns
// false if this is not known.
func isOurs(f *fact.Facts, plugin string) bool {
	if f.CNI == nil {
		return false
	}
	// Read is not used here, because it would note a missing fact. Without the fact, the plugin counts as another
	// project's.
	return slices.ContainsFunc(f.CNI.Binaries.Value, func(b fact.Binary) bool { return b.RailCNI && filepath.Base(b.Path) == plugin })
}

func checkResources(f *fact.Facts, r *rule.Report) {
	names := map[string]resource.Mode{}
	eachPoolConfig(f, r, func(_ *fact.Config, p *resource.PoolConfig) { names[p.Name] = p.Mode })
	if len(names) == 0 {
		return // the pools are not at hand
	}
	subject.EachConfig(f, r, fact.NADConfig, func(c *fact.Config) {
		if c.Resource == "" {
			return
		}
		r.Judged()
		for name, mode := range names {
			if c.Resource == name && mode != resource.PerRail || mode == resource.PerRail && strings.HasPrefix(c.Resource, name+"_rail_") {
				return
			}
		}
		r.Find(c.Object(), "no pool has the resource %s; there are %s", c.Resource, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
	})
}

func checkRequests(f *fact.Facts, r *rule.Report) {
	if f.Configs == nil || !f.Configs.Requests.Asked() {
		return
	}
	pods, _ := rule.Read(r, "annotations of pods", f.Configs.Requests)
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		r.Judged()
		if !slices.Contains(pods[pod], fact.NetworksKey) {
			r.Find("pod "+pod, "it has the annotation %s instead of %s", strings.Join(pods[pod], ", "), fact.NetworksKey)
		}
	}
}

// partitionOf returns the partition of a key from sysfs: the key without the bit of full membership. It returns 0 if
// the text is not a key.
func partitionOf(key string) netconf.PKey {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16)
	if err != nil {
		return 0
	}
	return netconf.PKey(n & 0x7fff)
}
