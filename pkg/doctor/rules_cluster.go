package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

var clusterRules = []Rule{
	{
		ID: "CLUSTER-SILENT", Scope: ClusterScope, Severity: Warn,
		Expects:     "Each node of the cluster answers a request for its facts.",
		Consequence: "No rule checks the node. The rules that compare nodes do not see it either.",
		Cure:        "Check that the pod of the DaemonSet rail-agent runs on the node. Or run railctl doctor collect on the node, and judge the facts with railctl doctor --facts.",
		Check: func(f *Facts, r *Report) {
			if f.Cluster == nil {
				return
			}
			silent, _ := Read(r, "silent nodes", f.Cluster.Silent)
			for range len(f.Cluster.Nodes) {
				r.judged()
			}
			for _, name := range slices.Sorted(maps.Keys(silent)) {
				r.Find("node "+name, "%s", silent[name])
			}
		},
	},
	{
		ID: "CLUSTER-MODE", Scope: ClusterScope, Severity: Warn,
		Expects:     "All nodes have the same RDMA mode.",
		Consequence: "A network that works on one node fails on another. In exclusive mode macvlan has no RDMA. In shared mode host-device does not separate the RDMA devices of pods.",
		Cure:        "Set one mode on all nodes that serve the same networks (railctl rdma mode).",
		Check: func(f *Facts, r *Report) {
			skew(f, r, "RDMA mode", func(n *Facts) []entry {
				if n.Host == nil {
					return nil
				}
				mode, _ := Read(r, n.Node+" rdmaMode", n.Host.RDMAMode)
				return []entry{{value: mode}}
			})
		},
	},
	{
		ID: "VER-SKEW", Scope: ClusterScope, Severity: Warn,
		Expects:     "All nodes have the same versions of the plugins, of rail-agent and of Multus.",
		Consequence: "A network works on some nodes only, and the difference is hard to find.",
		Cure:        "Finish the rollout. If a node still has an old version after the rollout, check whether rail-agent runs on that node and may install plugins.",
		Check: func(f *Facts, r *Report) {
			skew(f, r, "", func(n *Facts) []entry { return versions(r, n) })
		},
	},
	{
		ID: "CLUSTER-FIRMWARE", Scope: ClusterScope, Severity: Warn,
		Expects:     "NICs of one model on the same rail have the same firmware on all nodes.",
		Consequence: "Nodes behave differently under congestion.",
		Cure:        "Install the same firmware on all nodes.",
		Check: func(f *Facts, r *Report) {
			railSkew(f, r, "firmware", func(n *NIC) Fact[string] { return n.Firmware }, func(v string) string { return v })
		},
	},
	{
		ID: "CLUSTER-MTU", Scope: ClusterScope, Severity: Fail,
		Expects:     "The NICs of one rail have the same MTU on all nodes.",
		Consequence: "Large packets between nodes with different MTUs are dropped without a message. Connections are made, and then hang.",
		Cure:        "Set the same MTU on all nodes and on the switches between them.",
		Check: func(f *Facts, r *Report) {
			railSkew(f, r, "mtu", func(n *NIC) Fact[int] { return n.MTU }, func(v int) string { return fmt.Sprint(v) })
		},
	},
	{
		ID: "CLUSTER-SPEED", Scope: ClusterScope, Severity: Warn,
		Expects:     "The NICs of one rail have the same speed on all nodes.",
		Consequence: "The slowest NIC sets the speed of every collective operation in the cluster.",
		Cure:        "Compare the speed settings of the node's port and of its switch port with the settings of the other nodes.",
		Check: func(f *Facts, r *Report) {
			railSkew(f, r, "speed", func(n *NIC) Fact[int64] { return n.Mbps }, func(v int64) string { return fmt.Sprintf("%g Gb/s", float64(v)/1000) })
		},
	},
	{
		ID: "RAIL-ABSENT", Scope: ClusterScope, Severity: Warn,
		Expects:     "Each node that has rails has all the rails that most of these nodes have.",
		Consequence: "Pods that need all rails do not start on this node. A job that also uses other nodes has less bandwidth on this node.",
		Cure:        "Look for the rail's NIC on the node (railctl nics, lspci), and for the rail in \"rails\" of the node file.",
		Check:       checkAbsentRails,
	},
	{
		ID: "RAIL-SWAP", Scope: ClusterScope, Severity: Fail,
		Expects:     "Each rail has one subnet on all nodes: no node uses the subnet of one rail for another rail.",
		Consequence: "Two rails of this node are swapped: their traffic crosses the spine switches. If the rails are isolated from each other, the traffic does not arrive.",
		Cure:        "Swap the two NICs in \"rails\" of the node file, or swap the cables.",
		Check:       func(f *Facts, r *Report) { checkSubnets(f, r, true) },
	},
	{
		ID: "RAIL-SUBNET", Scope: ClusterScope, Severity: Fail,
		Expects:     "A rail has the same subnet on all nodes, except in a fabric that is routed or flat.",
		Consequence: "On this rail, pods of the node do not reach pods of other nodes.",
		Cure:        "Compare the addresses in the networks and in the node files of several nodes. If your fabric gives each node its own prefix, write \"fabric: routed\" into the node files.",
		Check:       func(f *Facts, r *Report) { checkSubnets(f, r, false) },
	},
	{
		ID: "IPAM-DUP", Scope: ClusterScope, Severity: Fail,
		Expects:     "No two interfaces of a rail have the same address.",
		Consequence: "Packets go to one of the two interfaces at random, so connections of both interfaces break repeatedly.",
		Cure:        "Delete one of the pods. Then look for pools whose ranges overlap (railctl ipam check), and for addresses that were set by hand.",
		Check:       checkDuplicates,
	},
	{
		ID: "IPAM-LEASE", Scope: ClusterScope, Severity: Warn,
		Expects:     "Each allocated address of a pool belongs to a pod of the cluster.",
		Consequence: "No other pod can get the address. If this happens again and again, the pool runs out of addresses.",
		Cure:        "Wait until the reconciler frees the address in its next run, or run railctl ipam gc to free it now.",
		Check: func(f *Facts, r *Report) {
			if f.Cluster == nil {
				return
			}
			leases, _ := Read(r, "leases", f.Cluster.Leases)
			pods, ok := Read(r, "pods", f.Cluster.Pods)
			lives := map[string]bool{}
			for _, p := range pods {
				lives[p] = true
			}
			for i := range leases {
				r.judged()
				if l := &leases[i]; ok && l.Pod != "" && !lives[l.Pod] {
					r.Find("pool "+l.Pool, "%s belongs to %s, which is gone", l.Address, l.Pod)
				}
			}
		},
	},
}

// eachNode calls do for each node of the cluster whose facts are known.
func eachNode(f *Facts, do func(*Facts)) {
	if f.Cluster == nil {
		return
	}
	for _, n := range f.Cluster.Nodes {
		if n != nil {
			do(n)
		}
	}
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

// skew reports each node that has another value than most nodes. Empty values are not compared. The
// function of returns the values of a node. Its entries may leave out what if name alone describes
// the value.
func skew(f *Facts, r *Report, name string, of func(*Facts) []entry) {
	all := map[string]*majority{}
	type node struct {
		name    string
		entries []entry
	}
	var nodes []node
	eachNode(f, func(n *Facts) {
		entries := slices.DeleteFunc(of(n), func(e entry) bool { return e.value == "" })
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
				r.judged() // they are compared
			}
			if most := m.mode(); e.value != most {
				what := strings.TrimSpace(e.what + " " + name)
				found := r.Find("node "+n.name, "%s: %s here, and %s on %d of %d nodes", what, e.value, most, m.count[most], m.total)
				if e.rail != nil {
					found.OnRail(*e.rail)
				}
			}
		}
	}
}

func versions(r *Report, n *Facts) []entry {
	var all []entry
	if n.CNI != nil {
		binaries, _ := Read(r, n.Node+" plugins", n.CNI.Binaries)
		for i := range binaries {
			if v := binaries[i].Version; v != "" {
				all = append(all, entry{what: "plugins", value: v})
				break // CNI-MIX reports other versions
			}
		}
		multus, _ := Read(r, n.Node+" multus", n.CNI.Multus)
		all = append(all, entry{what: "Multus", value: multus})
	}
	if n.Agent != nil && !n.Agent.absent() {
		agent, _ := Read(r, n.Node+" agent version", n.Agent.Version)
		all = append(all, entry{what: "rail-agent", value: agent})
	}
	return all
}

// railSkew reports each node on which the NIC of a rail has another value than on most nodes. Only
// NICs of the same model are compared. Zero values are not compared.
func railSkew[T comparable](f *Facts, r *Report, name string, of func(*NIC) Fact[T], text func(T) string) {
	skew(f, r, name, func(node *Facts) []entry {
		var all []entry
		eachNIC(node, r, func(n *NIC) {
			if n.Rail == nil {
				return
			}
			var none T
			if value, ok := Read(r, node.Node+" "+n.label()+" "+name, of(n)); ok && value != none {
				all = append(all, entry{fmt.Sprintf("rail %d (%s)", *n.Rail, n.model()), text(value), n.Rail})
			}
		})
		return all
	})
}

func checkAbsentRails(f *Facts, r *Report) {
	nodes := 0
	has := map[int]int{}
	eachNode(f, func(n *Facts) {
		rails := railsOf(n, r)
		if len(rails) > 0 {
			nodes++
		}
		for rail := range rails {
			has[rail]++
		}
	})
	eachNode(f, func(n *Facts) {
		rails := railsOf(n, r)
		if len(rails) == 0 {
			return
		}
		r.judged()
		for _, rail := range slices.Sorted(maps.Keys(has)) {
			if rails[rail] == nil && 2*has[rail] > nodes {
				r.Find("node "+n.Node, "it has no rail %d, which %d of %d nodes have", rail, has[rail], nodes).OnRail(rail)
			}
		}
	})
}

// railByName returns the rail of each NIC of the node, by the NIC's name. A network that names a
// NIC has no rail itself, so the NIC's rail counts.
func railByName(n *Facts, r *Report) map[string]*int {
	rails := map[string]*int{}
	eachNIC(n, r, func(nic *NIC) { rails[nic.Name] = nic.Rail })
	return rails
}

// subnetsOf returns the subnets of each rail of a node. It looks at NICs on the host and at
// interfaces in pods. It leaves out link-local subnets and subnets of at most two addresses,
// because such a subnet belongs to one node only.
func subnetsOf(n *Facts, r *Report) map[int]map[netip.Prefix]bool {
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
	eachNIC(n, r, func(nic *NIC) {
		if nic.Rail == nil || nic.Holder != "" {
			return // NICs in pods are the interfaces below
		}
		addresses, _ := Read(r, n.Node+" "+nic.label()+" addresses", nic.Addresses)
		add(nic.Rail, addresses)
	})
	rails := railByName(n, r)
	eachPod(n, r, func(p *Pod) { p.eachRail(r, func(i *Interface) { add(cmp.Or(i.Rail, rails[i.NIC]), i.Addresses) }) })
	return all
}

// checkSubnets reports the rails of a node that do not have the subnet that most nodes have on the
// same rail. With swapped, it reports only rails whose subnet is the subnet of another rail on most
// nodes. Without swapped, it reports only the other rails.
func checkSubnets(f *Facts, r *Report, swapped bool) {
	rails := map[int]*railSubnets{}
	subnets := map[*Facts]map[int]map[netip.Prefix]bool{}
	eachNode(f, func(n *Facts) {
		if n.NICs == nil {
			return
		}
		if fabric, _ := Read(r, n.Node+" fabric", n.NICs.Fabric); fabric == nodefile.FabricRouted || fabric == nodefile.FabricFlat {
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
		if most, _ := rails[rail].usual(); most.IsValid() {
			railOf[most] = append(railOf[most], rail)
		}
	}
	eachNode(f, func(n *Facts) {
		for _, rail := range slices.Sorted(maps.Keys(subnets[n])) {
			most, sure := rails[rail].usual()
			if most.IsValid() {
				r.judged()
			}
			if nets := subnets[n][rail]; most.IsValid() && !nets[most] && (swapped || sure) {
				reportSubnet(r, n, rail, nets, most, railOf, swapped)
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
	for _, p := range sortedPrefixes(nets) {
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
func (s *railSubnets) usual() (most netip.Prefix, sure bool) {
	if s.nodes < 2 {
		return most, false
	}
	for _, p := range s.order {
		if s.count[p] > s.count[most] {
			most = p
		}
	}
	return most, s.count[most] >= 2 && 2*s.count[most] > s.nodes
}

func reportSubnet(r *Report, n *Facts, rail int, nets map[netip.Prefix]bool, most netip.Prefix, railOf map[netip.Prefix][]int, swapped bool) {
	var texts []string
	var other []int
	for _, p := range sortedPrefixes(nets) {
		texts = append(texts, p.String())
		other = append(other, railOf[p]...)
	}
	switch isSwapped := len(other) > 0; {
	case isSwapped != swapped:
	case isSwapped:
		r.Find("node "+n.Node, "rail %d has the subnet %s, which is the subnet of rail %d on other nodes", rail, strings.Join(texts, ", "), other[0]).OnRail(rail)
	default:
		r.Find("node "+n.Node, "rail %d has the subnet %s, and on most nodes the subnet %s", rail, strings.Join(texts, ", "), most).OnRail(rail)
	}
}

// sortedPrefixes returns the keys of m, sorted by address and then by length.
func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

func checkDuplicates(f *Facts, r *Report) {
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
			at := place{"NIC " + nic, a.Addr().Unmap()}
			if rail != nil {
				at.network = fmt.Sprintf("rail %d", *rail)
			}
			if !slices.Contains(owners[at], owner) { // an interface can have the same address with two prefix lengths
				owners[at] = append(owners[at], owner)
			}
		}
	}
	eachNode(f, func(n *Facts) {
		eachNIC(n, r, func(nic *NIC) {
			if nic.Rail != nil && nic.Holder == "" {
				addresses, _ := Read(r, n.Node+" "+nic.label()+" addresses", nic.Addresses)
				add(nic.Rail, nic.label(), addresses, nic.label()+" of node "+n.Node)
			}
		})
		rails := railByName(n, r)
		eachPod(n, r, func(p *Pod) {
			p.eachRail(r, func(i *Interface) {
				add(cmp.Or(i.Rail, rails[i.NIC]), i.NIC, i.Addresses, i.Name+" of "+p.Object()+" on node "+n.Node)
			})
		})
	})
	places := slices.SortedFunc(maps.Keys(owners), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.address.Compare(b.address))
	})
	for _, at := range places {
		r.judged()
		if list := owners[at]; len(list) > 1 {
			r.Find("address "+at.address.String(), "it is on %s", strings.Join(list, " and "))
		}
	}
}
