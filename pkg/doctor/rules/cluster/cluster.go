package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return clusterRules }

var clusterRules = []rule.Rule{
	{
		ID: "CLUSTER-SILENT", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "Each node of the cluster answers a request for its facts.",
		Consequence: "No rule checks the node. The rules that compare nodes do not see it either.",
		Cure:        "Check that the pod of the DaemonSet rail-agent runs on the node. Or run railctl doctor collect on the node, and judge the facts with railctl doctor --facts.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Cluster == nil {
				return
			}
			silent, _ := rule.Read(r, "silent nodes", f.Cluster.Silent)
			for range len(f.Cluster.Nodes) {
				r.Judged()
			}
			for _, name := range slices.Sorted(maps.Keys(silent)) {
				r.Find("node "+name, "%s", silent[name])
			}
		},
	},
	{
		ID: "CLUSTER-MODE", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "All nodes have the same RDMA mode.",
		Consequence: "A network that works on one node fails on another. In exclusive mode macvlan has no RDMA. In shared mode host-device does not separate the RDMA devices of pods.",
		Cure:        "Set one mode on all nodes that serve the same networks (railctl rdma mode).",
		Check: func(f *fact.Facts, r *rule.Report) {
			skew(f, r, "RDMA mode", func(n *fact.Facts) []entry {
				if n.Host == nil {
					return nil
				}
				mode, _ := rule.Read(r, n.Node+" rdmaMode", n.Host.RDMAMode)
				return []entry{{value: mode}}
			})
		},
	},
	{
		ID: "VER-SKEW", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "All nodes have the same versions of the plugins, of rail-agent and of Multus.",
		Consequence: "A network works on some nodes only, and the difference is hard to find.",
		Cure:        "Finish the rollout. If a node still has an old version after the rollout, check whether rail-agent runs on that node and may install plugins.",
		Check: func(f *fact.Facts, r *rule.Report) {
			skew(f, r, "", func(n *fact.Facts) []entry { return versions(r, n) })
		},
	},
	{
		ID: "CLUSTER-FIRMWARE", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "NICs of one model on the same rail have the same firmware on all nodes.",
		Consequence: "Nodes behave differently under congestion.",
		Cure:        "Install the same firmware on all nodes.",
		Check: func(f *fact.Facts, r *rule.Report) {
			railSkew(f, r, "firmware", func(n *fact.NIC) fact.Fact[string] { return n.Firmware }, func(v string) string { return v })
		},
	},
	{
		ID: "CLUSTER-MTU", Scope: rule.ClusterScope, Severity: rule.Fail,
		Expects:     "The NICs of one rail have the same MTU on all nodes.",
		Consequence: "Large packets between nodes with different MTUs are dropped without a message. Connections are made, and then hang.",
		Cure:        "Set the same MTU on all nodes and on the switches between them.",
		Check: func(f *fact.Facts, r *rule.Report) {
			railSkew(f, r, "mtu", func(n *fact.NIC) fact.Fact[int] { return n.MTU }, func(v int) string { return fmt.Sprint(v) })
		},
	},
	{
		ID: "CLUSTER-SPEED", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "The NICs of one rail have the same speed on all nodes.",
		Consequence: "The slowest NIC sets the speed of every collective operation in the cluster.",
		Cure:        "Compare the speed settings of the node's port and of its switch port with the settings of the other nodes.",
		Check: func(f *fact.Facts, r *rule.Report) {
			railSkew(f, r, "speed", func(n *fact.NIC) fact.Fact[int64] { return n.Mbps }, func(v int64) string { return fmt.Sprintf("%g Gb/s", float64(v)/1000) })
		},
	},
	{
		ID: "RAIL-ABSENT", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "Each node that has rails has all the rails that most of these nodes have.",
		Consequence: "Pods that need all rails do not start on this node. A job that also uses other nodes has less bandwidth on this node.",
		Cure:        "Look for the rail's NIC on the node (railctl nics, lspci), and for the rail in \"rails\" of the node file.",
		Check:       checkAbsentRails,
	},
	{
		ID: "RAIL-SWAP", Scope: rule.ClusterScope, Severity: rule.Fail,
		Expects:     "Each rail has one subnet on all nodes: no node uses the subnet of one rail for another rail.",
		Consequence: "Two rails of this node are swapped: their traffic crosses the spine switches. If the rails are isolated from each other, the traffic does not arrive.",
		Cure:        "Swap the two NICs in \"rails\" of the node file, or swap the cables.",
		Check:       func(f *fact.Facts, r *rule.Report) { checkSubnets(f, r, true) },
	},
	{
		ID: "RAIL-SUBNET", Scope: rule.ClusterScope, Severity: rule.Fail,
		Expects:     "A rail has the same subnet on all nodes, except in a fabric that is routed or flat.",
		Consequence: "On this rail, pods of the node do not reach pods of other nodes.",
		Cure:        "Compare the addresses in the networks and in the node files of several nodes. If your fabric gives each node its own prefix, write \"fabric: routed\" into the node files.",
		Check:       func(f *fact.Facts, r *rule.Report) { checkSubnets(f, r, false) },
	},
	{
		ID: "IPAM-DUP", Scope: rule.ClusterScope, Severity: rule.Fail,
		Expects:     "No two interfaces of a rail have the same address.",
		Consequence: "Packets go to one of the two interfaces at random, so connections of both interfaces break repeatedly.",
		Cure:        "Delete one of the pods. Then look for pools whose ranges overlap (railctl ipam check), and for addresses that were set by hand.",
		Check:       checkDuplicates,
	},
	{
		ID: "IPAM-LEASE", Scope: rule.ClusterScope, Severity: rule.Warn,
		Expects:     "Each allocated address of a pool belongs to a pod of the cluster.",
		Consequence: "No other pod can get the address. If this happens again and again, the pool runs out of addresses.",
		Cure:        "Wait until the reconciler frees the address in its next run, or run railctl ipam gc to free it now.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Cluster == nil {
				return
			}
			leases, _ := rule.Read(r, "leases", f.Cluster.Leases)
			pods, ok := rule.Read(r, "pods", f.Cluster.Pods)
			lives := map[string]bool{}
			for _, p := range pods {
				lives[p] = true
			}
			for i := range leases {
				r.Judged()
				if l := &leases[i]; ok && l.Pod != "" && !lives[l.Pod] {
					r.Find("pool "+l.Pool, "%s belongs to %s, which is gone", l.Address, l.Pod)
				}
			}
		},
	},
}

// entry is a value that one node has. The field what names the thing that has the value, for
// example a rail.
type entry struct {
	what, value string
	rail        *int // nil if the value does not belong to a rail
}

// majority counts how many nodes have each value of one thing.
type majority struct {
	count map[string]int
	order []string
	total int
}

func (m *majority) add(value string) {
	if m.count == nil {
		m.count = map[string]int{}
	}
	if m.count[value] == 0 {
		m.order = append(m.order, value)
	}
	m.count[value]++
	m.total++
}

// mode returns the most frequent value. If several values are equally frequent, it returns the one
// that was added first.
func (m *majority) mode() string {
	best := ""
	for _, v := range m.order {
		if best == "" || m.count[v] > m.count[best] {
			best = v
		}
	}
	return best
}

// skew reports each node that has another value than most nodes. Empty values are not compared. get
// returns the values of a node. Its entries may leave out what if name alone describes
// the value.
func skew(f *fact.Facts, r *rule.Report, name string, get func(*fact.Facts) []entry) {
	all := map[string]*majority{}
	type node struct {
		name    string
		entries []entry
	}
	var nodes []node
	subject.EachNode(f, func(n *fact.Facts) {
		entries := slices.DeleteFunc(get(n), func(e entry) bool { return e.value == "" })
		nodes = append(nodes, node{n.Node, entries})
		for _, e := range entries {
			if all[e.what] == nil {
				all[e.what] = &majority{}
			}
			all[e.what].add(e.value)
		}
	})
	for _, n := range nodes {
		for _, e := range n.entries {
			m := all[e.what]
			if m.total > 1 {
				r.Judged() // they are compared
			}
			if mode := m.mode(); e.value != mode {
				what := strings.TrimSpace(e.what + " " + name)
				found := r.Find("node "+n.name, "%s: %s here, and %s on %d of %d nodes", what, e.value, mode, m.count[mode], m.total)
				if e.rail != nil {
					found.OnRail(*e.rail)
				}
			}
		}
	}
}

func versions(r *rule.Report, n *fact.Facts) []entry {
	var all []entry
	if n.CNI != nil {
		binaries, _ := rule.Read(r, n.Node+" plugins", n.CNI.Binaries)
		for i := range binaries {
			if v := binaries[i].Version; v != "" {
				all = append(all, entry{what: "plugins", value: v})
				break // CNI-MIX reports other versions
			}
		}
		multus, _ := rule.Read(r, n.Node+" multus", n.CNI.Multus)
		all = append(all, entry{what: "Multus", value: multus})
	}
	if n.Agent != nil && !n.Agent.Absent() {
		agent, _ := rule.Read(r, n.Node+" agent version", n.Agent.Version)
		all = append(all, entry{what: "rail-agent", value: agent})
	}
	return all
}

// railSkew reports each node on which the NIC of a rail has another value than on most nodes. Only
// NICs of the same model are compared. Zero values are not compared.
func railSkew[T comparable](f *fact.Facts, r *rule.Report, name string, get func(*fact.NIC) fact.Fact[T], text func(T) string) {
	skew(f, r, name, func(node *fact.Facts) []entry {
		var all []entry
		subject.EachNIC(node, r, func(n *fact.NIC) {
			if n.Rail == nil {
				return
			}
			var none T
			if value, ok := rule.Read(r, node.Node+" "+n.Label()+" "+name, get(n)); ok && value != none {
				all = append(all, entry{fmt.Sprintf("rail %d (%s)", *n.Rail, n.Model()), text(value), n.Rail})
			}
		})
		return all
	})
}

func checkAbsentRails(f *fact.Facts, r *rule.Report) {
	nodes := 0
	has := map[int]int{}
	subject.EachNode(f, func(n *fact.Facts) {
		rails := subject.NamesByRail(n, r)
		if len(rails) > 0 {
			nodes++
		}
		for rail := range rails {
			has[rail]++
		}
	})
	subject.EachNode(f, func(n *fact.Facts) {
		rails := subject.NamesByRail(n, r)
		if len(rails) == 0 {
			return
		}
		r.Judged()
		for _, rail := range slices.Sorted(maps.Keys(has)) {
			if rails[rail] == nil && 2*has[rail] > nodes {
				r.Find("node "+n.Node, "it has no rail %d, which %d of %d nodes have", rail, has[rail], nodes).OnRail(rail)
			}
		}
	})
}

// railByName returns the rail of each NIC of the node, by the NIC's name. A network that names a
// NIC has no rail itself, so the NIC's rail counts.
func railByName(n *fact.Facts, r *rule.Report) map[string]*int {
	rails := map[string]*int{}
	subject.EachNIC(n, r, func(nic *fact.NIC) { rails[nic.Name] = nic.Rail })
	return rails
}

// subnetsOf returns the subnets of each rail of a node. It looks at NICs on the host and at
// interfaces in pods. It leaves out link-local subnets and subnets of at most two addresses,
// because such a subnet belongs to one node only.
func subnetsOf(n *fact.Facts, r *rule.Report) map[int]map[netip.Prefix]bool {
	all := map[int]map[netip.Prefix]bool{}
	add := func(rail *int, addresses []string) {
		for _, text := range addresses {
			a, err := netip.ParsePrefix(text)
			if rail == nil || err != nil || a.Addr().IsLinkLocalUnicast() || a.Addr().BitLen()-a.Bits() < 2 {
				continue
			}
			if all[*rail] == nil {
				all[*rail] = map[netip.Prefix]bool{}
			}
			all[*rail][a.Masked()] = true
		}
	}
	subject.EachNIC(n, r, func(nic *fact.NIC) {
		if nic.Rail == nil || nic.Holder != "" {
			return // NICs in pods are the interfaces below
		}
		addresses, _ := rule.Read(r, n.Node+" "+nic.Label()+" addresses", nic.Addresses)
		add(nic.Rail, addresses)
	})
	rails := railByName(n, r)
	subject.EachPod(n, r, func(p *fact.Pod) {
		subject.EachRailOf(p, r, func(i *fact.Interface) { add(cmp.Or(i.Rail, rails[i.NIC]), i.Addresses) })
	})
	return all
}

// checkSubnets reports the rails of a node that do not have the subnet that most nodes have on the
// same rail. With swapped, it reports only rails whose subnet is the subnet of another rail on most
// nodes. Without swapped, it reports only the other rails.
func checkSubnets(f *fact.Facts, r *rule.Report, swapped bool) {
	rails := map[int]*railSubnets{}
	subnets := map[*fact.Facts]map[int]map[netip.Prefix]bool{}
	subject.EachNode(f, func(n *fact.Facts) {
		if n.NICs == nil {
			return
		}
		if fabric, _ := rule.Read(r, n.Node+" fabric", n.NICs.Fabric); fabric == nodefile.FabricRouted || fabric == nodefile.FabricFlat {
			return
		}
		subnets[n] = subnetsOf(n, r)
		for rail, nets := range subnets[n] {
			if rails[rail] == nil {
				rails[rail] = &railSubnets{count: map[netip.Prefix]int{}}
			}
			rails[rail].add(nets)
		}
	})
	railOf := map[netip.Prefix][]int{}
	for _, rail := range slices.Sorted(maps.Keys(rails)) {
		if usual, _ := rails[rail].usual(); usual.IsValid() {
			railOf[usual] = append(railOf[usual], rail)
		}
	}
	subject.EachNode(f, func(n *fact.Facts) {
		for _, rail := range slices.Sorted(maps.Keys(subnets[n])) {
			usual, sure := rails[rail].usual()
			if usual.IsValid() {
				r.Judged()
			}
			if nets := subnets[n][rail]; usual.IsValid() && !nets[usual] && (swapped || sure) {
				reportSubnet(r, n, rail, nets, usual, railOf, swapped)
			}
		}
	})
}

// railSubnets counts, for one rail, the nodes on which the rail has each subnet.
type railSubnets struct {
	nodes int
	count map[netip.Prefix]int
	order []netip.Prefix // the subnets of the first node come first
}

// add adds a node.
func (s *railSubnets) add(nets map[netip.Prefix]bool) {
	s.nodes++
	for _, p := range subject.SortedPrefixes(nets) {
		if s.count[p] == 0 {
			s.order = append(s.order, p)
		}
		s.count[p]++
	}
}

// usual returns the subnet that most nodes have. With only one node the subnet is invalid. The
// result is sure if more than half of the nodes have the subnet. If several subnets are equally
// frequent, as on two nodes that differ, usual returns the first node's subnet. A result that is
// not sure is good enough to find swapped rails, but not to find wrong subnets: a rail can have
// several networks, and two nodes can have pods of different networks.
func (s *railSubnets) usual() (subnet netip.Prefix, sure bool) {
	if s.nodes < 2 {
		return subnet, false
	}
	for _, p := range s.order {
		if s.count[p] > s.count[subnet] {
			subnet = p
		}
	}
	return subnet, s.count[subnet] >= 2 && 2*s.count[subnet] > s.nodes
}

func reportSubnet(r *rule.Report, n *fact.Facts, rail int, nets map[netip.Prefix]bool, usual netip.Prefix, railOf map[netip.Prefix][]int, swapped bool) {
	var texts []string
	var other []int
	for _, p := range subject.SortedPrefixes(nets) {
		texts = append(texts, p.String())
		other = append(other, railOf[p]...)
	}
	switch isSwapped := len(other) > 0; {
	case isSwapped != swapped:
	case isSwapped:
		r.Find("node "+n.Node, "rail %d has the subnet %s, which is the subnet of rail %d on other nodes", rail, strings.Join(texts, ", "), other[0]).OnRail(rail)
	default:
		r.Find("node "+n.Node, "rail %d has the subnet %s, and on most nodes the subnet %s", rail, strings.Join(texts, ", "), usual).OnRail(rail)
	}
}

func checkDuplicates(f *fact.Facts, r *rule.Report) {
	// Two rails may be separate networks that use the same addresses. Without rails, all NICs with
	// the same name count as one network.
	type place struct {
		network string
		address netip.Addr
	}
	owners := map[place][]string{}
	add := func(rail *int, nic string, addresses []string, owner string) {
		for _, text := range addresses {
			a, err := netip.ParsePrefix(text)
			if err != nil || a.Addr().IsLinkLocalUnicast() {
				continue
			}
			p := place{"NIC " + nic, a.Addr().Unmap()}
			if rail != nil {
				p.network = fmt.Sprintf("rail %d", *rail)
			}
			if !slices.Contains(owners[p], owner) { // an interface can have the same address with two prefix lengths
				owners[p] = append(owners[p], owner)
			}
		}
	}
	subject.EachNode(f, func(n *fact.Facts) {
		subject.EachNIC(n, r, func(nic *fact.NIC) {
			if nic.Rail != nil && nic.Holder == "" {
				addresses, _ := rule.Read(r, n.Node+" "+nic.Label()+" addresses", nic.Addresses)
				add(nic.Rail, nic.Label(), addresses, nic.Label()+" of node "+n.Node)
			}
		})
		rails := railByName(n, r)
		subject.EachPod(n, r, func(p *fact.Pod) {
			subject.EachRailOf(p, r, func(i *fact.Interface) {
				add(cmp.Or(i.Rail, rails[i.NIC]), i.NIC, i.Addresses, i.Name+" of "+p.Object()+" on node "+n.Node)
			})
		})
	})
	places := slices.SortedFunc(maps.Keys(owners), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.address.Compare(b.address))
	})
	for _, p := range places {
		r.Judged()
		if list := owners[p]; len(list) > 1 {
			r.Find("address "+p.address.String(), "it is on %s", strings.Join(list, " and "))
		}
	}
}
