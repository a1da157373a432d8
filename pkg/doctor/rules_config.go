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
		Expects:     "Each plugin can read its configuration in the NetworkAttachmentDefinitions that name the plugin.",
		Consequence: "Each ADD of the network fails, and the network's pods stay in ContainerCreating.",
		Cure:        "Correct the key or value that the evidence names. docs/reference/keys.md lists all keys.",
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
		Expects:     "No network misspells the type of a rail-cni plugin or IPAM plugin by one letter.",
		Consequence: "The runtime looks for a plugin with the misspelled name, so each ADD of the network fails. The other rules do not check the plugin's configuration, because they do not know the type.",
		Cure:        "Correct the type. If another project really has a plugin with that name, ignore this rule (--ignore CNI-TYPE).",
		Check:       checkTypes,
	},
	{
		ID: "CNI-FOREIGN-TYPE", Scope: ConfigScope, Severity: Fail,
		Expects: "Each node on which pods of a network can run has a plugin of the network's type. If the network has keys that only rail-cni's plugins read, this plugin is rail-cni's. " +
			"The rule does not check nodes without any plugin of rail-cni.",
		Consequence: "If there is no such plugin, each ADD of the network fails. If the plugin is another project's, it ignores or refuses the keys.",
		Cure: "Install rail-cni's plugin (plugins.names in the chart, or rail-agent install --plugins). By default sriov, ib-sriov and ipoib are not installed. " +
			"Or, if the network can do without these keys, remove them from the network.",
		Check: checkForeignTypes,
	},
	{
		ID: "CNI-KEY", Scope: ConfigScope, Severity: Warn,
		Expects:     "A network has no key that its plugins do not know.",
		Consequence: "Plugins ignore unknown keys, so a misspelled key has no effect.",
		Cure:        "Correct or remove the key. docs/reference/keys.md lists all keys.",
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
		Expects:     "A network names a CNI version that the plugins support. A network with a list of plugins names 0.3.0 or newer.",
		Consequence: "The runtime or the plugin refuses the configuration.",
		Cure:        "Write \"cniVersion\": \"1.0.0\".",
		Check: func(f *Facts, r *Report) {
			known := version.All.SupportedVersions()
			eachNetwork(f, r, func(n *network) {
				r.judged()
				switch v := cmp.Or(n.version, "0.1.0"); {
				case n.err != nil:
				case !slices.Contains(known, v):
					r.Find(n.config.Object(), "cniVersion is %q, but the plugins support only %s", v, strings.Join(known, ", "))
				case n.list && slices.Index(known, v) < slices.Index(known, "0.3.0"):
					r.Find(n.config.Object(), "the network has a list of plugins, but cniVersion is %s", v)
				}
			})
		},
	},
	{
		ID: "CNI-NETSTATUS", Scope: ConfigScope, Severity: Warn,
		Expects:     "A network names the CNI version 0.3.0 or newer. From this version on, a plugin's result names the interface.",
		Consequence: "Multus writes no entry for the network into the pod's network-status, so programs that read network-status do not find the rail. If whereabouts' own reconciler runs, it frees the address although the pod still runs.",
		Cure:        "Write \"cniVersion\": \"1.0.0\". A network without the key has version 0.1.0.",
		Check: func(f *Facts, r *Report) {
			known := version.All.SupportedVersions()
			eachNetwork(f, r, func(n *network) {
				r.judged()
				v := cmp.Or(n.version, "0.1.0")
				if i := slices.Index(known, v); n.err == nil && !n.list && i >= 0 && i < slices.Index(known, "0.3.0") {
					r.Find(n.config.Object(), "its CNI version is %s, whose results do not name the interface", v)
				}
			})
		},
	},
	{
		ID: "CNI-CHAIN", Scope: ConfigScope, Severity: Fail,
		Expects:     "In a list of plugins, the plugin that makes the interface (host-device, macvlan or ipoib) comes first and occurs once. The plugin rdma comes after it.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Put the plugin that makes the interface first. If that plugin is rail-cni's host-device, macvlan or ipoib, you can remove rdma: it is not needed.",
		Check: func(f *Facts, r *Report) {
			eachNetwork(f, r, func(n *network) {
				for i := range n.plugins {
					if n.plugins[i].kind != "" {
						r.judged()
					}
					switch p := &n.plugins[i]; {
					case p.kind == "rdma" && i == 0:
						r.Find(n.config.Object(), "%s is the first plugin, but works only after the plugin that makes the interface", p.name)
					case p.kind != "" && p.kind != "rdma" && i > 0:
						r.Find(n.config.Object(), "%s makes the interface, but comes after %s", p.name, n.plugins[i-1].name)
					}
				}
			})
		},
	},
	{
		ID: "CNI-MODE", Scope: ConfigScope, Severity: Warn,
		Expects:     "The networks fit the node's RDMA mode. In exclusive mode no macvlan network requires RDMA, and a network with another project's plugin sriov has the plugin rdma after sriov.",
		Consequence: "The pod has an interface, but no RDMA device. With \"rdma\": \"required\" each ADD fails instead.",
		Cure:        "To keep exclusive mode, lend whole NICs with host-device instead of macvlan, and put the plugin rdma after sriov-cni's sriov. Or set the mode to shared (docs/guide/rdma-modes.md). Or, if the network needs no RDMA, write \"rdma\": \"off\" into it.",
		Check:       checkNetworkModes,
	},
	{
		ID: "CNI-DEVICE", Scope: ConfigScope, Severity: Warn,
		Expects:     "No two networks of a namespace lend the same NIC, and no macvlan network uses a NIC that another network lends.",
		Consequence: "Only one pod at a time can use these networks. A second pod does not start.",
		Cure:        "Name another NIC in one of the networks. If the pods of these networks never run at the same time, ignore this rule (--ignore CNI-DEVICE).",
		Check:       checkSameDevice,
	},
	{
		ID: "CNI-NIC", Scope: ConfigScope, Severity: Warn,
		Expects:     "Each network selects a NIC. If the network names a NIC or a rail, at least one node has it.",
		Consequence: "Each ADD of the network fails, because the plugin finds no NIC.",
		Cure:        "Correct the NIC or the rail in the network. railctl nics lists the NICs with all their names. railctl generate nads writes networks that fit the node.",
		Check:       checkSelectedNICs,
	},
	{
		ID: "CNI-MTU", Scope: ConfigScope, Severity: Fail,
		Expects:     "The MTU of a macvlan network is at most the MTU of the NIC on which the macvlan lies.",
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
						r.Find(n.config.Object(), "its mtu is %d, but the MTU of %s is %d", p.macvlan.MTU, p.macvlan.Master, mtu)
						return
					}
				}
			})
		},
	},
	{
		ID: "IB-NAD-PKEY", Scope: ConfigScope, Severity: Fail,
		Expects:     "The InfiniBand port that an ipoib network names is a member of the network's partition.",
		Consequence: "On this node each ADD of the network fails until the port is a member of the partition.",
		Cure:        "Make the port a member of the partition in the subnet manager's configuration, or correct \"pkey\" in the network.",
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
		Expects:     "If an ipoib network is in its master's partition, its MTU is at most the master's MTU. The partition's multicast group limits the master's MTU.",
		Consequence: "The pods' interfaces get the master's smaller MTU. If the network's MTU is also larger than the port's maximum, each ADD fails.",
		Cure:        "Remove \"mtu\" from the network. Or raise the MTU of the partition's multicast group in the subnet manager's configuration (mtu=5 is 4096 bytes), and restart the subnet manager.",
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
					r.Find(n.config.Object(), "its mtu is %d, but the MTU of %s is %d", p.ipoib.MTU, nic.label(), mtu)
				}
			})
		},
	},
	{
		ID: "CNI-RESOURCE", Scope: ConfigScope, Severity: Warn,
		Expects:     "One of the known device pools offers the resource that a NetworkAttachmentDefinition names (annotation k8s.v1.cni.cncf.io/resourceName).",
		Consequence: "Pods that request the resource stay Pending, and Multus passes no device to the network.",
		Cure:        "Correct the annotation or the pool's name. A pool with the mode perRail has one resource for each rail: NAME_rail_0, NAME_rail_1, and so on.",
		Check:       checkResources,
	},
	{
		ID: "CNI-ANNOTATION", Scope: ConfigScope, Severity: Fail, API: true,
		Expects:     "A pod that asks for networks uses the annotation k8s.v1.cni.cncf.io/networks.",
		Consequence: "Multus ignores any other key. The pod starts without its rails, and no Event reports the problem.",
		Cure:        "Rename the annotation in the pod's template, and create the pod again.",
		Check:       checkRequests,
	},
	{
		ID: "IPAM-RAILS", Scope: ConfigScope, Severity: Fail,
		Expects:     "A network with ${rail} has valid addresses for each rail. The ranges of its rails do not overlap, and each gateway is in the range of its rail. A network with sameHost has ranges of equal size, and it has a block_size or uses the local store.",
		Consequence: "Each ADD on a rail without valid addresses fails.",
		Cure:        "Put ${rail} into the network part of the range, for example 10.${rail}.0.0/16, and also into the gateway (docs/guide/rails.md). If the network has sameHost, give it a block_size.",
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
		Expects:     "No address pool can assign the address of its gateway to a pod.",
		Consequence: "A pod can get the router's address. Then the traffic of all pods on the rail goes to that pod, or is lost.",
		Cure:        "Remove allow_gateway, or add the gateway to \"exclude\". Without allow_gateway, rail-cni's whereabouts never assigns the gateway, but upstream's whereabouts does.",
		Check:       checkGateways,
	},
	{
		ID: "IPAM-GWNET", Scope: ConfigScope, Severity: Warn,
		Expects:     "The gateway of a network is in the subnet of its range.",
		Consequence: "The pod cannot reach the gateway, and the kernel refuses routes through the gateway.",
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
		Expects:     "If pods need the gateway of a network, the network has routes or its own routing table (routing mode source). Pods need the gateway if each node has its own subnet, or if the node file has \"fabric: routed\".",
		Consequence: "The gateway has no effect. On this rail a pod reaches only its own subnet, so it does not reach pods of other nodes or of other rails.",
		Cure:        "Add either \"routes\" to \"ipam\" or \"routing\": {\"mode\": \"source\"} to the network. If pods do not need the gateway, remove it.",
		Check:       checkGatewayRoutes,
	},
	{
		ID: "IPAM-EMPTY", Scope: ConfigScope, Severity: Fail,
		Expects:     "Each range has at least one address that can be assigned.",
		Consequence: "Each ADD of the network fails.",
		Cure:        "Use a larger range, or exclude fewer of its addresses.",
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
		Consequence: "A pod with both networks has two routes to the same address. If \"store\" is \"local\" or enable_overlapping_ranges is false, two pods can also get the same address.",
		Cure:        "Give each network its own range. Or give both networks the same range, so that they use one pool. If the networks are not connected, set a different network_name in each.",
		Check:       checkOverlaps,
	},
	{
		ID: "IPAM-NETS", Scope: ConfigScope, Severity: Fail,
		Expects:     "No range overlaps with the networks of the cluster: pods, services, nodes.",
		Consequence: "Pods with the network do not reach the pods, services or nodes whose addresses overlap, because packets to these addresses leave by the rail.",
		Cure:        "Use a range that does not overlap with these networks.",
		Check:       checkClusterNetworks,
	},
	{
		ID: "NODE-FILE", Scope: ConfigScope, Severity: Fail,
		Expects:     "The node file can be read and has no unknown key.",
		Consequence: "No plugin lends a NIC on the node. The plugins do not use only the readable part of the file, because the unreadable part may forbid a NIC.",
		Cure:        "Correct the key or value that the evidence names. docs/reference/node-file.md lists all keys.",
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
		Expects:     "Each configuration of a device plugin (k8s-rdma-shared-dev-plugin, sriov-network-device-plugin) can be read.",
		Consequence: "The device plugin does not start. If the node file names the configuration, rail-agent does not use its pools.",
		Cure:        "Correct the mistake that the evidence describes.",
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
		Expects:     "Each key in the configuration of a device plugin has an effect.",
		Consequence: "A key without an effect may be misspelled. A misspelled selector selects either nothing or more NICs than intended.",
		Cure:        "Correct or remove the key.",
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
		Consequence: "The resource has fewer devices than intended, or none. k8s-rdma-shared-dev-plugin does not know alternative names, and it loses a NIC while the NIC is in a pod.",
		Cure:        "Use the names that railctl nics prints. Or select the NICs by properties that do not change (vendors, drivers, rails).",
		Check:       checkIfNames,
	},
}

// first reports whether p is the first pool of the plugin. A rule whose finding holds for every
// rail reports it only for the first pool.
func (p *pool) first(of *plugin) bool { return p == &of.addresses[0] }

// eachPool calls do for each address pool of each network.
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

// eachPoolConfig calls do for each device pool in the node file and in the configurations of device
// plugins.
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

// below returns the keys that begin with the object's name and a dot, without this prefix.
func below(object string, keys []string) []string {
	var all []string
	for _, key := range keys {
		if rest, ok := strings.CutPrefix(key, object+"."); ok {
			all = append(all, rest)
		}
	}
	return all
}

// unknownIn returns a sentence for each key of the object that is not among the known keys. As in
// encoding/json, the case of a key does not matter. If a known key has dots, only the name before
// the first dot is compared.
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

// isOurs reports whether the plugin that is installed under this name is rail-cni's. It returns
// false if this is not known.
func (f *Facts) isOurs(plugin string) bool {
	if f.CNI == nil {
		return false
	}
	// Read is not used here, because it would note a missing fact. Without the fact, the plugin counts as another
	// project's.
	return slices.ContainsFunc(f.CNI.Binaries.Value, func(b Binary) bool { return b.RailCNI && filepath.Base(b.Path) == plugin })
}

// selected returns the name or PCI address by which the plugin selects its NIC on the host. It
// returns "" if the plugin selects the NIC by its rail, or if the kubelet chooses the device.
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

// sharedRDMA returns the value of the key "rdma" if pods of the plugin share a NIC of the host. For
// any other plugin it returns "".
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

// policy returns the routing policy in the plugin's configuration.
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

// eachIPoIBPort calls do for each ipoib plugin and each InfiniBand port of the plugin's master.
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

// selectsNone reports whether the plugin is host-device and its configuration selects no NIC.
func (p *plugin) selectsNone() bool {
	h := p.hostDevice
	return h != nil && h.Device == "" && h.HWAddr == "" && h.KernelPath == "" && len(h.IDs()) == 0 && h.Rail.Number == nil
}

// rail returns the rail that the plugin's NIC must have.
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
				r.Find(u.object, "it lends %s, which %s also lends", name, other)
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
			r.Find(n.config.Object(), "%s selects no NIC: it names neither a device nor a rail, and the NetworkAttachmentDefinition names no resource", p.name)
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

// checkGatewayRoutes judges the networks whose pods need the gateway. If all pods of a rail are in
// one subnet, they do not need it: then "gateway" only keeps the router's address free.
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
			r.Find(n.config.Object(), "it has the gateway %s, but no routes", pool.conf.Gateway)
		}
	})
}

// spans returns the spans of addresses that the pools of all networks assign. If several networks
// use the same pool, its span is returned once.
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
		r.judged() // the spans are compared
	}
	var furthest *span // the earlier span that ends last: if any earlier span overlaps with the next span, this one does
	for i := range all {
		s := &all[i]
		if furthest == nil || furthest.space != s.space || furthest.First.BitLen() != s.First.BitLen() {
			furthest = s
			continue
		}
		// Ranges with the same prefix are one pool, which assigns each address only once.
		if furthest.prefix != s.prefix && s.Overlaps(furthest.Range) {
			r.Find(s.owner, "its addresses %s-%s overlap with %s-%s of %s", s.First, s.Last, furthest.First, furthest.Last, furthest.owner)
		}
		if furthest.Last.Less(s.Last) {
			furthest = s
		}
	}
}

// clusterNetworks has each key of [Configs.Networks], with the reason why the key can be missing.
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

// NetworksKey is the annotation that a pod uses to ask Multus for networks.
const NetworksKey = "k8s.v1.cni.cncf.io/networks"

func checkRequests(f *Facts, r *Report) {
	if f.Configs == nil || !f.Configs.Requests.asked() {
		return
	}
	pods, _ := Read(r, "annotations of pods", f.Configs.Requests)
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		r.judged()
		if !slices.Contains(pods[pod], NetworksKey) {
			r.Find("pod "+pod, "it has the annotation %s instead of %s", strings.Join(pods[pod], ", "), NetworksKey)
		}
	}
}
