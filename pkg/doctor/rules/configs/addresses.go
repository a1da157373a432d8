package configs

import (
	"cmp"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// span is a range of addresses, from the first address to the last.
type span struct {
	iprange.Range
	prefix netip.Prefix
	space  string // the address space; only ranges in the same space are compared
	owner  string
}

// eachPool calls do for each address pool of each network.
func eachPool(f *fact.Facts, r *rule.Report, do func(*network.Network, *network.Plugin, *network.Pool)) {
	subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
		for i := range p.Pools {
			do(n, p, &p.Pools[i])
		}
	})
}

func checkGateways(f *fact.Facts, r *rule.Report) {
	foreign := map[string]bool{} // names of programs on the node that are not rail-cni's
	if f.CNI != nil {
		binaries, _ := rule.Read(r, "plugins", f.CNI.Binaries)
		for i := range binaries {
			if b := &binaries[i]; !b.RailCNI && b.Installed == "" { // CNI-BINARY has a plugin that was replaced
				foreign[path.Base(b.Path)] = true
			}
		}
	}
	eachPool(f, r, func(n *network.Network, plugin *network.Plugin, p *network.Pool) {
		name := plugin.Common.IPAM.Type
		if len(p.Conf.Gateways()) > 0 {
			r.Judged()
		}
		if !p.Conf.AllowGateway && !foreign[name] {
			return
		}
		open := *p.Conf
		open.AllowGateway = false
		ranges, _ := p.Ranges() // IPAM-EMPTY has the error
		for _, gateway := range open.Gateways() {
			for _, one := range ranges {
				if one.Why(gateway) == "" {
					why := "allow_gateway is true"
					if !p.Conf.AllowGateway {
						why = name + " on the node is not rail-cni's"
					}
					r.Find(n.Config.Object(), "the gateway %s is an address of the range %s, and %s", gateway, one.Prefix(), why)
				}
			}
		}
	})
}

// checkGatewayRoutes judges the networks whose pods need the gateway. If all pods of a rail are in
// one subnet, they do not need it: then "gateway" only keeps the router's address free.
func checkGatewayRoutes(f *fact.Facts, r *rule.Report) {
	routed := false
	subject.EachConfig(f, r, fact.NodeFile, func(c *fact.Config) {
		file, err := nodefile.Parse([]byte(c.Text)) // NODE-FILE has the error
		routed = routed || err == nil && file.Fabric == nodefile.FabricRouted
	})
	eachPool(f, r, func(n *network.Network, p *network.Plugin, pool *network.Pool) {
		source := p.Policy().Mode == netconf.RoutingSource
		ofNode := p.ByPrefix() || strings.Contains(string(p.Raw), "${node}")
		if pool.Conf.Gateway.IsValid() {
			r.Judged()
		}
		if pool.Conf.Gateway.IsValid() && len(pool.Conf.Routes) == 0 && !source && (routed || ofNode) && (pool.Rail == nil || pool.First(p)) {
			r.Find(n.Config.Object(), "it has the gateway %s, but no routes", pool.Conf.Gateway)
		}
	})
}

// spans returns the spans of addresses that the pools of all networks assign. If several networks
// use the same pool, its span is returned once.
func spans(f *fact.Facts, r *rule.Report) []span {
	var all []span
	seen := map[span]bool{}
	eachPool(f, r, func(n *network.Network, _ *network.Plugin, p *network.Pool) {
		ranges, _ := p.Ranges() // IPAM-EMPTY has the error
		for _, one := range ranges {
			s := span{Range: iprange.Range{First: one.First(), Last: one.Last()}, prefix: one.Prefix(), space: p.Conf.NetworkName}
			if !seen[s] {
				seen[s] = true
				s.owner = n.Config.Object()
				all = append(all, s)
			}
		}
	})
	slices.SortStableFunc(all, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.space, b.space), a.First.Compare(b.First), b.Last.Compare(a.Last))
	})
	return all
}

func checkOverlaps(f *fact.Facts, r *rule.Report) {
	all := spans(f, r)
	if len(all) > 1 {
		r.Judged() // they are compared
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

// clusterNetworks are the keys of [fact.Configs.Networks], with the reasons why one can be missing.
var clusterNetworks = map[string]string{
	"nodes":    "no node has an InternalIP",
	"pods":     "no node has a podCIDR: the network plugin assigns addresses by itself",
	"services": "the API server lists no servicecidrs: it is older than Kubernetes 1.33, or the right to list them is missing",
}

func checkClusterNetworks(f *fact.Facts, r *rule.Report) {
	ranges := spans(f, r)
	if len(ranges) == 0 || !f.Configs.Networks.Asked() {
		return
	}
	networks, ok := rule.Read(r, "networks of the cluster", f.Configs.Networks)
	for _, kind := range slices.Sorted(maps.Keys(clusterNetworks)) {
		if ok && len(networks[kind]) == 0 {
			r.Lacks("network of the cluster's "+kind, clusterNetworks[kind])
		}
	}
	type used struct {
		kind   string
		prefix netip.Prefix
	}
	var all []used
	for _, kind := range slices.Sorted(maps.Keys(networks)) {
		for _, text := range networks[kind] {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, used{kind, p.Masked()})
			}
		}
	}
	for _, s := range ranges {
		r.Judged()
		for _, u := range all {
			if u.prefix.Overlaps(s.prefix) {
				r.Find(s.owner, "its range %s overlaps with %s, the network of the cluster's %s", s.prefix, u.prefix, u.kind)
			}
		}
	}
}
