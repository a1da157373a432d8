package nics

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// heldInKnownPod reports whether a pod whose interfaces are known holds the NIC. The rules about pods judge such a NIC.
func heldInKnownPod(n *fact.NIC, f *fact.Facts) bool {
	return n.Holder != "" && slices.ContainsFunc(f.Pods, func(p fact.Pod) bool {
		return p.Namespace+"/"+p.Name == n.Holder && p.Interfaces.OK()
	})
}

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return slices.Concat(nicRules, portRules, functionRules) }

var nicRules = []rule.Rule{
	{
		ID: "NIC-CARRIER", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each NIC with a rail has a carrier.",
		Consequence: "A pod that gets the NIC either waits for the link or starts without this rail. Collective operations stop or fall back to TCP.",
		Cure:        "Check the cable, the transceiver and the switch port. If the NIC is not meant to be used, remove its rail from the node file.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				up, known := rule.Read(r, n.Label()+" adminUp", n.AdminUp)
				if !known || !up || n.Moving {
					return // a NIC that is set down has no carrier to judge; ADD sets the NIC up and waits for the carrier
				}
				r.Judged()
				if heldInKnownPod(n, f) {
					return // POD-DOWN judges it
				}
				if carrier, ok := rule.Read(r, n.Label()+" carrier", n.Carrier); ok && !carrier {
					r.Find(n.Object(), "it is up and has no carrier")
				}
			})
		},
	},
	{
		ID: "NIC-DOWN", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "A NIC with child interfaces of pods is set up.",
		Consequence: "Macvlans on the NIC have no carrier, and IPoIB children are down. So the pods' rails carry no packets.",
		Cure:        "Set the NIC up, and find the person or the program that set it down.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				if n.Children == 0 {
					return
				}
				r.Judged()
				if up, ok := rule.Read(r, n.Label()+" adminUp", n.AdminUp); ok && !up {
					found := r.Find(n.Object(), "it is set down, and child interfaces of pods lie on it: %d", n.Children)
					if rule.Plain(n.Name) {
						found.Fix("ip link set %s up", n.Name)
					}
				}
			})
		},
	},
	{
		ID: "NIC-PCIE", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The link of each rail's NIC to its slot has the highest speed and width that both ends support.",
		Consequence: "The slot limits the bandwidth of the rail, and the slowest rail limits the bandwidth of every collective operation.",
		Cure:        "Reseat the NIC. Check the slot's settings in the firmware setup (bifurcation, generation), and search the kernel's log for AER errors. Often a cold reset retrains the link.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				if n.PCI == "" {
					return
				}
				p, ok := rule.Read(r, n.Label()+" pcie", n.PCIe)
				if !ok || p.GTs <= 0 || p.Width <= 0 {
					return // the slot does not report its speed
				}
				r.Judged()
				if p.GTs < p.MaxGTs || p.Width < p.MaxWidth {
					r.Find(n.Object(), "its link has %g GT/s × %d lanes, but supports %g GT/s × %d lanes: about %.0f of %.0f Gb/s", p.GTs, p.Width, p.MaxGTs, p.MaxWidth, gbps(&p), gbps(&fact.PCIe{GTs: p.MaxGTs, Width: p.MaxWidth}))
				}
			})
		},
	},
	{
		ID: "NIC-SPEED", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All rails' NICs of the same model have the same speed.",
		Consequence: "The slowest rail sets the speed of every collective operation.",
		Cure:        "Compare the speed settings of the NIC's port (ethtool NIC) and of its switch port with the settings of the other rails.",
		Check: func(f *fact.Facts, r *rule.Report) {
			differ(f, r, "mbps", func(n *fact.NIC) fact.Fact[int64] { return n.Mbps }, func(v int64) string { return fmt.Sprintf("%g Gb/s", float64(v)/1000) })
		},
	},
	{
		ID: "NIC-FIRMWARE", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All rails' NICs of the same model have the same firmware.",
		Consequence: "Rails behave differently under congestion, and errors are hard to compare.",
		Cure:        "Install the same firmware on all NICs of the model (flint, mlxfwmanager).",
		Check: func(f *fact.Facts, r *rule.Report) {
			differ(f, r, "firmware", func(n *fact.NIC) fact.Fact[string] { return n.Firmware }, func(v string) string { return "firmware " + v })
		},
	},
	{
		ID: "NIC-MTU", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All rails' NICs of the same model have the same MTU.",
		Consequence: "Between two rails with different MTUs, RoCE uses the smaller packets, or large packets are dropped without a message. 30 to 50 % of the bandwidth is lost.",
		Cure:        "Set the same MTU on all rails, on the switch ports and in the networks. For RoCE use 9000, or the largest MTU that the fabric carries.",
		Check: func(f *fact.Facts, r *rule.Report) {
			differ(f, r, "mtu", func(n *fact.NIC) fact.Fact[int] { return n.MTU }, func(v int) string { return fmt.Sprintf("MTU %d", v) })
		},
	},
	{
		ID: "NIC-PFC", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All rails' NICs of the same model have priority flow control (PFC) on the same priorities.",
		Consequence: "Under load, the fabric drops packets on the rail that differs, but pauses packets on the other rails. Collective operations wait for the rail that drops packets.",
		Cure:        "Configure PFC in the same way on all rails (dcb pfc or mlnx_qos), usually on priority 3. Configure the switch ports like the NICs.",
		Check: func(f *fact.Facts, r *rule.Report) {
			differ(f, r, "dcb", func(n *fact.NIC) fact.Fact[fact.DCB] { return n.DCB }, dcbText)
		},
	},
	{
		ID: "NIC-ECN", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "All rails' NICs of the same model have ECN (DCQCN) on the same priorities. Each priority that has PFC also has ECN. Only the driver of MLNX_OFED and DOCA shows these settings.",
		Consequence: "The NIC does not notify senders of congestion, or does not slow down when it is notified. Then only PFC's pauses limit the traffic. These pauses also stop other traffic in the fabric.",
		Cure:        "Write 1 to /sys/class/net/INTERFACE/ecn/roce_np/enable/PRIORITY and to /sys/class/net/INTERFACE/ecn/roce_rp/enable/PRIORITY on every rail, now and at each boot. If your fabric uses PFC without ECN by design, ignore this rule (--ignore NIC-ECN).",
		Check:       checkECN,
	},
	{
		ID: "NIC-FLAP", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "No rail loses its carrier three or more times in 12 hours.",
		Consequence: "NCCL waits while the NIC retries, and then ends with a timeout. Jobs fail without any other error.",
		Cure:        "Clean or replace the cable and the transceiver, and look at the switch port's error counters.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.NICs != nil && f.NICs.List.OK() && !slices.ContainsFunc(f.NICs.List.Value, func(n fact.NIC) bool { return n.Flaps.Asked() }) {
				return // these facts are not from rail-agent, and only rail-agent remembers losses of the carrier
			}
			subject.EachRail(f, r, func(n *fact.NIC) {
				r.Judged()
				flaps, ok := rule.Read(r, n.Label()+" flaps", n.Flaps)
				if ok && flaps.Count >= 3 { // of the last 12 hours
					r.Find(n.Object(), "it lost its carrier %d times in %.1f hours", flaps.Count, flaps.Seconds/3600)
				}
			})
		},
	},
	{
		ID: "NIC-BER", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "On each rail's NIC, the counters of symbol errors and frame errors do not rise.",
		Consequence: "Frames are lost on the cable and are sent again. The rail is slow, or its link goes down and up.",
		Cure:        "Clean or replace the cable and the transceiver. Check that both ends use the same error correction (FEC).",
		Check:       func(f *fact.Facts, r *rule.Report) { rising(f, r, cableCounters, 0) },
	},
	{
		ID: "NIC-LOSS", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "On each rail, RoCE loses at most one packet per second.",
		Consequence: "A switch or the NIC drops packets, and the sender sends them again. Under load the bandwidth collapses, and connections end when their retries are used up.",
		Cure:        "Enable PFC and ECN for RoCE's priority on the NIC and on every switch. Set the NIC and the switches to trust DSCP. Check that NCCL_IB_TC or the network's roceTos selects this priority.",
		Check:       func(f *fact.Facts, r *rule.Report) { rising(f, r, lossCounters, 1) },
	},
	{
		ID: "NIC-REQERR", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "On each rail's NIC, the counters of invalid requests and oversized frames do not rise.",
		Consequence: "A program or a setting is wrong, and connections end. For example, two peers use different MTUs, or a program uses a wrong key or memory that is not registered.",
		Cure:        "Compare the MTU of both ends and of the switches. Look at the logs of the programs that use the NIC.",
		Check:       func(f *fact.Facts, r *rule.Report) { rising(f, r, mistakeCounters, 0) },
	},
	{
		ID: "NIC-DRIVER", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each rail's NIC has a driver.",
		Consequence: "The NIC has neither a network interface nor an RDMA device, so no pod can get it.",
		Cure:        "Load the driver, or bind the NIC to the driver (/sys/bus/pci/drivers_probe). The kernel's log says why no driver is bound.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				if n.PCI == "" {
					return
				}
				r.Judged()
				if n.Driver == "" {
					found := r.Find(n.Object(), "no driver is bound to %s", n.PCI)
					if rule.Plain(n.PCI) {
						found.Fix("echo %s > /sys/bus/pci/drivers_probe", n.PCI)
					}
				}
			})
		},
	},
	{
		ID: "NIC-NETDEV", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each Ethernet NIC with a rail has a network interface, either on the host or in the pod that holds the NIC.",
		Consequence: "No pod can get the NIC. Either another plugin or a person has moved the interface to another network namespace, or the driver did not make an interface.",
		Cure:        "Find the network namespace with the interface (lsns -t net; nsenter … ip link), and delete the pod of that namespace. The kernel returns the interface when the namespace ends. If the interface is in no namespace, reload the driver.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				if n.Driver == "" || n.LinkType == "infiniband" || slices.Contains(userspaceDrivers, n.Driver) {
					return
				}
				r.Judged()
				if n.Name != "" || n.Holder != "" {
					return
				}
				ports, ok := rule.Read(r, n.Label()+" ports", n.Ports)
				if ok && !slices.ContainsFunc(ports, func(p fact.Port) bool { return p.LinkLayer == fact.InfiniBand }) { // InfiniBand needs no interface
					r.Find(n.Object(), "it has the driver %s and no network interface on the host, and no attachment has the NIC", n.Driver)
				}
			})
		},
	},
	{
		ID: "NIC-NAME", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No rail's NIC on the host has the name of a pod's interface (net1) or a name that the kernel chose when the NIC returned without rail-cni (dev7).",
		Consequence: "Networks and device plugins that name the NIC do not find it, and pods wait for the NIC.",
		Cure:        "Give the NIC its former name again. You find the former name among the NIC's alternative names, in the rules of udev, or in the node's network configuration.",
		Check:       checkNames,
	},
	{
		ID: "NIC-NUMA", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The firmware reports the NUMA node either of all rails' NICs or of none.",
		Consequence: "A NIC without a NUMA node counts as far from every GPU and every CPU, so NCCL and the topology manager choose badly.",
		Cure:        "Check the NUMA settings in the firmware setup (NPS, sub-NUMA clustering), or update the firmware.",
		Check: func(f *fact.Facts, r *rule.Report) {
			var with int
			var without []*fact.NIC
			subject.EachRail(f, r, func(n *fact.NIC) {
				switch {
				case n.PCI == "":
				case n.NUMA == nil:
					without = append(without, n)
				default:
					with++
				}
			})
			if with > 0 {
				r.Judged() // they are compared
			}
			for _, n := range without {
				if with > 0 {
					r.Find(n.Object(), "it has no NUMA node, but %d other NICs have one", with)
				}
			}
		},
	},
	{
		ID: "NIC-DISTANCE", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "If the node has at least as many rails as GPUs, each GPU has a rail's NIC on its own NUMA node.",
		Consequence: "The GPU reaches the network only through the link between NUMA nodes, which is the link between the sockets on most machines. This leaves about two thirds of the bandwidth.",
		Cure:        "Compare the slots of the NICs (railctl topology) with the vendor's plan of the machine. A NIC may be in the wrong slot, or the node file may lack its rail.",
		Check:       checkDistances,
	},
	{
		ID: "NIC-VFS", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No pod holds a physical function that has virtual functions.",
		Consequence: "The virtual functions lose their link whenever the pod's interface goes down. The pod can also configure the virtual functions that other pods have.",
		Cure:        "Lend the virtual functions instead of the physical function. Or remove the virtual functions (sriov_numvfs) before the NIC is lent. Then remove \"vfs\" from \"allow\" in the network.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachRail(f, r, func(n *fact.NIC) {
				vfs, _ := rule.Read(r, n.Label()+" vfs", n.VFs)
				if n.Holder == "" || n.Kind != "pf" {
					return
				}
				r.Judged()
				if vfs.Count > 0 {
					r.Find(n.Object(), "%s holds it, and it has %d virtual functions", n.Holder, vfs.Count)
				}
			})
		},
	},
	{
		ID: "NIC-SWITCHDEV", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The embedded switch of a rail's NIC is not in mode switchdev. NICs in a shared pool, and NICs with child interfaces of pods, are not checked.",
		Consequence: "The kernel does not move a NIC in mode switchdev into a pod, so each ADD of host-device fails.",
		Cure:        "Lend the NIC's virtual functions or subfunctions instead. If no program (for example Open vSwitch) uses the NIC's representors, set the mode to legacy: devlink dev eswitch set pci/ADDRESS mode legacy.",
		Check: func(f *fact.Facts, r *rule.Report) {
			shared := inSharedPools(f, r)
			subject.EachRail(f, r, func(n *fact.NIC) {
				r.Judged()
				if rule.Read(r, n.Label()+" vfs", n.VFs); switchdev(n) && n.Children == 0 && !shared[n.Name] && !shared[n.PCI] {
					r.Find(n.Object(), "its embedded switch is in mode switchdev")
				}
			})
		},
	},
	{
		ID: "NIC-PROTECTED", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "Each rail's NIC can be lent. NICs in a shared pool, and NICs with child interfaces of pods, are not checked.",
		Consequence: "A pod that asks for the rail does not start.",
		Cure:        "Stop whatever the evidence says is using the NIC, as docs/guide/host-device.md describes for each guardrail. Or remove the NIC from the rails of the node file.",
		Check:       checkProtected,
	},
	{
		ID: "RAIL-DUP", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "No two NICs have the same rail.",
		Consequence: "A network that names this rail finds two NICs, and its ADD fails.",
		Cure:        "Correct \"rails\" in the node file. railctl rails discover proposes a list of rails.",
		Check: func(f *fact.Facts, r *rule.Report) {
			byRail := subject.NamesByRail(f, r)
			for _, rail := range slices.Sorted(maps.Keys(byRail)) {
				r.Judged()
				if nics := byRail[rail]; len(nics) > 1 {
					r.Find(fmt.Sprintf("rail %d", rail), "these NICs have it: %s", strings.Join(nics, " and ")).OnRail(rail)
				}
			}
		},
	},
	{
		ID: "RAIL-GAP", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "The numbers of the node's rails have no gap.",
		Consequence: "Either a NIC of the node is missing, and pods on this node lack its rail. Or the rails have other numbers than on other nodes.",
		Cure:        "Compare the node's NICs with \"rails\" in the node file (railctl rails discover). Check whether the PCI bus has lost a NIC (lspci).",
		Check: func(f *fact.Facts, r *rule.Report) {
			rails := slices.Sorted(maps.Keys(subject.NamesByRail(f, r)))
			for i := 1; i < len(rails); i++ {
				r.Judged()
				if rails[i]-rails[i-1] > 1 {
					r.Find(fmt.Sprintf("rail %d", rails[i-1]+1), "the node has rail %d and rail %d, but no rail between them", rails[i-1], rails[i]).OnRail(rails[i-1] + 1)
				}
			}
		},
	},
}

// foreignName matches the names that interfaces have in pods. It also matches the names that the
// kernel chooses for an interface if its network namespace ends and its name is taken on the host.
var foreignName = regexp.MustCompile(`^(net|dev)[0-9]+$`)

func checkNames(f *fact.Facts, r *rule.Report) {
	var all int
	var strange []*fact.NIC
	subject.EachRail(f, r, func(n *fact.NIC) {
		if n.Holder != "" {
			return // while a pod holds it, its name is the name that it had on the host
		}
		all++
		r.Judged()
		if foreignName.MatchString(n.Name) {
			strange = append(strange, n)
		}
	})
	if 2*len(strange) > all && all > 1 {
		return // more than half of the NICs have such names, so an administrator chose them
	}
	for _, n := range strange {
		r.Find(n.Object(), "its name is %s, and its alternative names are %s", n.Name, cmp.Or(strings.Join(n.AltNames, ", "), "none"))
	}
}

// userspaceDrivers are drivers that give a NIC to a program. With these drivers the NIC has no
// network interface.
var userspaceDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// These are counters of ports and devices, grouped by the likely cause of their growth. The names
// are from /sys/class/infiniband/DEVICE/ports/N/{counters,hw_counters}, from ethtool -S, and from
// /sys/class/net/NAME/statistics.
var (
	cableCounters = []string{
		"symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors", "port_rcv_remote_physical_errors",
		"rx_crc_errors", "rx_crc_errors_phy", "rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_icrc_encapsulated",
	}
	lossCounters = []string{
		"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "rnr_nak_retry_err", "roce_adp_retrans", "roce_slow_restart",
		"rx_discards_phy", "tx_discards_phy", "excessive_buffer_overrun_errors", "port_xmit_discards", "out_of_buffer",
	}
	mistakeCounters = []string{
		"req_remote_access_errors", "resp_remote_access_errors", "req_remote_invalid_request", "resp_local_length_error",
		"rx_oversize_pkts_phy", "rx_jabbers_phy", "port_rcv_constraint_errors", "port_xmit_constraint_errors",
	}
)

// WantedCounters returns the names of the counters that rules read from [fact.NIC.Rising].
func WantedCounters() []string { return slices.Concat(cableCounters, lossCounters, mistakeCounters) }

// rising reports each NIC on which at least one of the counters grew by more than perSecond per
// second.
func rising(f *fact.Facts, r *rule.Report, counters []string, perSecond float64) {
	subject.EachRail(f, r, func(n *fact.NIC) {
		grown, ok := rule.Read(r, n.Label()+" rising", n.Rising)
		if !ok {
			return
		}
		r.Judged()
		var texts []string
		for _, name := range counters {
			if growth := grown.Counters[name]; float64(growth) > perSecond*grown.Seconds {
				texts = append(texts, fmt.Sprintf("%s by %d", name, growth))
			}
		}
		if len(texts) > 0 {
			r.Find(n.Object(), "in %.1f s rose %s", grown.Seconds, strings.Join(texts, ", "))
		}
	})
}

func checkDistances(f *fact.Facts, r *rule.Report) {
	if f.NICs == nil {
		return
	}
	gpus, _ := rule.Read(r, "gpus", f.NICs.GPUs)
	best := map[string]int{}
	rails := 0
	subject.EachNIC(f, r, func(n *fact.NIC) {
		if n.Rail == nil {
			return
		}
		rails++
		for gpu, distance := range n.Distances {
			if b, ok := best[gpu]; !ok || fact.Rank(distance) < b {
				best[gpu] = fact.Rank(distance)
			}
		}
	})
	if rails < len(gpus) {
		return
	}
	for _, g := range gpus {
		r.Judged()
		if b, ok := best[g.PCI]; ok && b == fact.Rank("SYS") {
			r.Find("GPU "+g.PCI, "each of the %d rails' NICs is on another NUMA node (SYS)", rails)
		}
	}
}

// switchdev reports whether the NIC is known to be a physical function whose embedded switch is in
// mode switchdev.
func switchdev(n *fact.NIC) bool { return n.Kind == "pf" && n.VFs.Value.Mode == "switchdev" }

// inSharedPools returns the names and PCI addresses of the NICs in shared pools. NICs in shared
// pools are not lent.
func inSharedPools(f *fact.Facts, r *rule.Report) map[string]bool {
	shared := map[string]bool{}
	if f.Kubelet != nil {
		pools, _ := rule.Read(r, "pools", f.Kubelet.Pools)
		for _, p := range pools {
			for _, name := range p.NICs {
				shared[name] = shared[name] || p.Kind == "shared"
			}
		}
	}
	return shared
}

func checkProtected(f *fact.Facts, r *rule.Report) {
	if f.NICs == nil {
		return
	}
	problems, _ := rule.Read(r, "rail and pool problems", f.NICs.Problems)
	shared := inSharedPools(f, r)
	subject.EachNIC(f, r, func(n *fact.NIC) {
		reported := slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, n.Label()) })
		reported = reported || switchdev(n) // NIC-SWITCHDEV reports it
		if n.Rail == nil {
			return
		}
		r.Judged()
		if n.Protected != "" && n.Children == 0 && !shared[n.Name] && !shared[n.PCI] && !reported {
			r.Find(n.Object(), "rail %d: %s", *n.Rail, n.Protected)
		}
	})
}

// differ reports each NIC for pods that has another value than most NICs of the same model and link type. NICs with a
// rail are not compared with NICs without a rail, because the two kinds belong to different networks. Empty values are
// not compared.
func differ[T comparable](f *fact.Facts, r *rule.Report, name string, get func(*fact.NIC) fact.Fact[T], text func(T) string) {
	type group struct {
		count map[T]int
		nics  []*fact.NIC
	}
	groups := map[string]*group{}
	subject.EachRail(f, r, func(n *fact.NIC) {
		value, ok := rule.Read(r, n.Label()+" "+name, get(n))
		var none T
		if !ok || value == none {
			return
		}
		key := fmt.Sprintf("%s %s %t", n.Model(), n.LinkType, n.Rail != nil)
		g := groups[key]
		if g == nil {
			g = &group{count: map[T]int{}}
			groups[key] = g
		}
		g.count[value]++
		g.nics = append(g.nics, n)
	})
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		if len(g.nics) > 1 {
			r.Judged() // they are compared
		}
		if len(g.count) < 2 {
			continue
		}
		// Values in the order of the NICs, so that a tie is judged the same way each time.
		first := get(g.nics[0]).Value
		for _, n := range g.nics {
			if v := get(n).Value; g.count[v] > g.count[first] {
				first = v
			}
		}
		for _, n := range g.nics {
			if v := get(n).Value; v != first {
				r.Find(n.Object(), "it has %s, and %d of %d have %s", text(v), g.count[first], len(g.nics), text(first))
			}
		}
	}
}

func dcbText(d fact.DCB) string {
	if d.PFC == "" {
		return "no PFC"
	}
	return "PFC on priority " + d.PFC
}

func checkECN(f *fact.Facts, r *rule.Report) {
	tells := f.NICs == nil || !f.NICs.List.OK()
	subject.EachRail(f, r, func(n *fact.NIC) { tells = tells || n.ECN.Value.Known || n.ECN.Error != "" })
	if !tells {
		return // no NIC's driver shows ECN
	}
	differ(f, r, "ecn", func(n *fact.NIC) fact.Fact[fact.ECN] { return n.ECN }, ecnText)
	subject.EachRail(f, r, func(n *fact.NIC) {
		ecn, ok := rule.Read(r, n.Label()+" ecn", n.ECN)
		if !ok || !ecn.Known {
			return
		}
		r.Judged()
		dcb, _ := rule.Read(r, n.Label()+" dcb", n.DCB)
		for priority := range strings.SplitSeq(dcb.PFC, ",") {
			both := slices.Contains(strings.Split(ecn.NP, ","), priority) && slices.Contains(strings.Split(ecn.RP, ","), priority)
			if priority != "" && !both {
				r.Find(n.Object(), "priority %s has PFC, and the NIC has %s", priority, ecnText(ecn))
			}
		}
	})
}

func ecnText(e fact.ECN) string {
	return fmt.Sprintf("ECN on priorities %s (np) and %s (rp)", cmp.Or(e.NP, "none"), cmp.Or(e.RP, "none"))
}

// gbps returns the bandwidth of the link in gigabits per second. It takes the line code into
// account (8b/10b up to 5 GT/s, 128b/130b above 5 GT/s), but not the overhead of packets.
func gbps(p *fact.PCIe) float64 {
	if p.GTs <= 5 {
		return p.GTs * float64(p.Width) * 8 / 10
	}
	return p.GTs * float64(p.Width) * 128 / 130
}
