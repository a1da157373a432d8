package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

var portRules = []Rule{
	{
		ID: "NIC-PORT", Scope: NodeScope, Severity: Fail,
		Expects:     "If a rail's NIC is up and has a carrier, its RDMA port is active.",
		Consequence: "Programs leave the port out without a message: NCCL runs without this rail.",
		Cure:        "Look at the kernel's log for the driver's reason; set the NIC down and up, or reload its RDMA driver.",
		Check: func(f *Facts, r *Report) {
			eachPort(f, r, func(n *NIC, p *Port) {
				if n.heldInKnownPod(f) || p.LinkLayer == InfiniBand && (p.State == "INIT" || p.State == "ARMED") {
					r.judged()
					return // POD-PORT looks at it, or IB-SM has the reason
				}
				if !stateOf(r, p.Device+" state", p.State) || !n.up(r) {
					return
				}
				r.judged()
				if p.State != "ACTIVE" {
					r.Find(n.Object(), "port %d of %s is %s, and the NIC has a carrier", p.Port, p.Device, p.State)
				}
			})
		},
	},
	{
		ID: "NIC-PHYS", Scope: NodeScope, Severity: Fail,
		Expects:     "The physical link of each rail's RDMA port is up while the NIC has a carrier.",
		Consequence: "The driver's two views of the link differ, and RDMA may not work on this rail.",
		Cure:        "Set the NIC down and up; if that does not help, reset it or update its firmware.",
		Check: func(f *Facts, r *Report) {
			eachPort(f, r, func(n *NIC, p *Port) {
				if !stateOf(r, p.Device+" physState", p.PhysState) || !n.up(r) {
					return
				}
				r.judged()
				if p.PhysState != "LinkUp" {
					r.Find(n.Object(), "the physical state of port %d of %s is %s, and the NIC has a carrier", p.Port, p.Device, p.PhysState)
				}
			})
		},
	},
	{
		ID: "NIC-ACTIVEMTU", Scope: NodeScope, Severity: Warn,
		Expects:     "A RoCE rail of 100 Gb/s or more has an MTU of 4192 bytes or more, so that RDMA packets carry 4096 bytes.",
		Consequence: "RDMA sends small packets: up to 30 to 50 % of the bandwidth is lost.",
		Cure:        "Set the MTU of the NIC, of the networks on it and of the switches to 9000, or to what the fabric carries.",
		Check: func(f *Facts, r *Report) {
			const fast, largest = 100_000, 4096
			eachPort(f, r, func(n *NIC, p *Port) {
				mtu, _ := Read(r, n.label()+" mtu", n.MTU)
				mbps, _ := Read(r, n.label()+" mbps", n.Mbps)
				if p.LinkLayer == InfiniBand || mtu == 0 || mbps < fast {
					return
				}
				r.judged()
				if p.ActiveMTU < largest {
					r.Find(n.Object(), "its MTU is %d at %g Gb/s, so RDMA packets of port %d of %s carry %d bytes", mtu, float64(mbps)/1000, p.Port, p.Device, p.ActiveMTU)
				}
			})
		},
	},
	{
		ID: "NIC-GIDV2", Scope: NodeScope, Severity: Fail,
		Expects:     "If a rail's Ethernet NIC is up, each of its addresses has a GID of the type RoCE v2.",
		Consequence: "Programs cannot use RDMA from this address, or choose another GID that peers do not reach.",
		Cure:        "Set the NIC down and up, so that the kernel makes its GIDs again. If an IPv4 address has a peer, configure the address without it: the kernel makes the GID of the peer instead. If there is no RoCE v2 GID at all, look at the driver's parameter enable_roce (devlink dev param show).",
		Check:       checkGIDs,
	},
	{
		ID: "NIC-GIDFULL", Scope: NodeScope, Severity: Warn,
		Expects:     "At least a tenth of the GID table of each rail's port, and at least 8 entries, are free.",
		Consequence: "A macvlan gets an address, but no GID: the pod starts, but has no RDMA.",
		Cure:        "Put fewer pods on the NIC, or spread them over more NICs. Every link on top of the NIC takes entries, also in a pod without RDMA and in exclusive mode. Without IPv6 it takes half as many.",
		Check: func(f *Facts, r *Report) {
			const small = 16 // a table of a device that makes no GIDs of addresses (iWARP)
			eachPort(f, r, func(n *NIC, p *Port) {
				gids, ok := Read(r, n.label()+" gids", p.GIDs)
				if !ok || p.TableSize < small {
					return
				}
				r.judged()
				if free := p.TableSize - len(gids); free < max(8, p.TableSize/10) {
					r.Find(n.Object(), "of the %d entries of the GID table of port %d of %s, %d are free", p.TableSize, p.Port, p.Device, max(free, 0))
				}
			})
		},
	},
	{
		ID: "IB-SM", Scope: NodeScope, Severity: Fail,
		Expects:     "A subnet manager has configured the InfiniBand port of each rail, and the interface has joined its multicast group.",
		Consequence: "The port stays in the state INIT, or the interface has no carrier: programs cannot use it.",
		Cure:        "Start the subnet manager (opensm, the switch's, UFM) and check that the port is in its fabric. An active port does not prove that a subnet manager runs; sminfo shows whether one does.",
		Check: func(f *Facts, r *Report) {
			eachInfiniBandPort(f, r, func(n *NIC, p *Port) {
				r.judged()
				sm, ok := Read(r, p.Device+" smLID", p.SMLID)
				switch {
				case p.PhysState == "LinkUp" && (p.State == "INIT" || p.State == "ARMED"):
					r.Find(n.Object(), "port %d of %s has a link and waits for a subnet manager (state %s)", p.Port, p.Device, p.State)
				case ok && sm == 0 && p.State == "ACTIVE":
					r.Find(n.Object(), "port %d of %s knows no subnet manager", p.Port, p.Device)
				case p.State == "ACTIVE" && n.LinkType == "infiniband" && n.withoutCarrier(r):
					r.Find(n.Object(), "port %d of %s is active, and %s is up without a carrier: it waits for its multicast group", p.Port, p.Device, n.Name)
				}
			})
		},
	},
	{
		ID: "IB-LID", Scope: NodeScope, Severity: Fail,
		Expects:     "Each active InfiniBand port has a local identifier (LID).",
		Consequence: "No packet of the fabric reaches the port.",
		Cure:        "Restart the subnet manager, or set the port down and up.",
		Check: func(f *Facts, r *Report) {
			eachInfiniBandPort(f, r, func(n *NIC, p *Port) {
				lid, ok := Read(r, p.Device+" lid", p.LID)
				if !ok || p.State != "ACTIVE" {
					return
				}
				r.judged()
				if lid == 0 {
					r.Find(n.Object(), "port %d of %s is active and has no LID", p.Port, p.Device)
				}
			})
		},
	},
	{
		ID: "IB-GUID-ZERO", Scope: NodeScope, Severity: Fail,
		Expects:     "Each InfiniBand port has a GUID that is neither all zeros (as on a new virtual function) nor all ones.",
		Consequence: "A subnet manager ignores a port with the GUID 0: it stays in INIT. It treats all ports whose GUID is all ones as the same port. host-device and ib-sriov refuse both GUIDs, unless ib-sriov has a GUID for the pod.",
		Cure:        "Set both GUIDs of the virtual function through its PF (ip link set PF vf N node_guid GUID, and port_guid), then rebind its driver. sriov-network-operator does this when it creates the functions. If all pods on them get GUIDs by ib-sriov, ignore the rule.",
		Check: func(f *Facts, r *Report) {
			eachInfiniBandPort(f, r, func(n *NIC, p *Port) {
				gids, ok := Read(r, p.Device+" gids", p.GIDs)
				if !ok || len(gids) == 0 {
					return
				}
				r.judged()
				guid := gids[0].Value[max(0, len(gids[0].Value)-len(noGUID)):]
				if guid == noGUID || guid == allGUIDs {
					r.Find(n.Object(), "the GUID of port %d of %s is %s", p.Port, p.Device, guid)
				}
			})
		},
	},
	{
		ID: "IB-SM-LENT", Scope: NodeScope, Severity: Warn,
		Expects:     "No subnet manager runs on the port of a NIC that a network may lend.",
		Consequence: "In exclusive RDMA mode ADD refuses the NIC, unless the network allows subnet-manager. In shared mode a pod gets the interface, and can set the link down.",
		Cure:        "Run the subnet manager elsewhere (the switch, UFM, a node without rails), or exclude the NIC from lending with the key nics of the node file.",
		Check: func(f *Facts, r *Report) {
			eachInfiniBandPort(f, r, func(n *NIC, p *Port) {
				manager, ok := Read(r, p.Device+" isSM", p.IsSM)
				if !ok || n.Protected != "" {
					return
				}
				r.judged()
				if manager {
					r.Find(n.Object(), "a subnet manager runs on port %d of %s", p.Port, p.Device)
				}
			})
		},
	},
	{
		ID: "IB-ORPHAN-CHILD", Scope: NodeScope, Severity: Warn,
		Expects:     "No child of an InfiniBand interface (ip link add … type ipoib) is left on the host by a pod that has ended.",
		Consequence: "The child keeps a queue pair, and host-device refuses the NIC (children). ipoib-cni leaves one for each pod that was killed.",
		Cure:        "If no service of the node made it, delete it: ip link del NAME.",
		Check: func(f *Facts, r *Report) {
			if f.NICs == nil {
				return
			}
			others, _ := Read(r, "other interfaces", f.NICs.Others)
			for i := range others {
				o := &others[i]
				if o.Kind != ipoibKind {
					continue
				}
				r.judged()
				if !o.AdminUp && !o.Attachment { // the kernel sets down what it brings back from a network namespace
					r.Find("interface "+o.Name, "it is a child of an InfiniBand interface, it is down, and no attachment has it")
				}
			}
		},
	},
	{
		ID: "IB-PKEY", Scope: NodeScope, Severity: Warn,
		Expects:     "Each InfiniBand port is a full member of a partition, and is a full member of the partition at index 0 of its table.",
		Consequence: "Limited members reach full members only, and not each other: nodes of a job have no connection. Programs that name no partition, such as NCCL (without NCCL_IB_PKEY) and perftest, use index 0.",
		Cure:        "Make the port a full member in the subnet manager's partitions (=full in partitions.conf; for the default partition Default=0x7fff: ALL=full), or name the index of the partition to the programs.",
		Check: func(f *Facts, r *Report) {
			eachInfiniBandPort(f, r, func(n *NIC, p *Port) {
				keys, ok := Read(r, p.Device+" pkeys", p.PKeys)
				if !ok || p.State != "ACTIVE" {
					return
				}
				r.judged()
				first, table := "empty", []string{}
				for _, k := range keys {
					table = append(table, fmt.Sprintf("%d=%s", k.Index, k.Key))
					if k.Index == 0 {
						first = k.Key
					}
				}
				all := strings.Join(table, " ")
				switch {
				case !slices.ContainsFunc(keys, func(k PKey) bool { return fullMember(k.Key) }):
					r.Find(n.Object(), "the partition keys of port %d of %s are %s, and none makes it a full member", p.Port, p.Device, all)
				case first == "empty":
					r.Find(n.Object(), "index 0 of the partition keys of port %d of %s is empty (%s); programs that name no partition use it", p.Port, p.Device, all)
				case !fullMember(first):
					r.Find(n.Object(), "index 0 of the partition keys of port %d of %s is %s, a limited member (all: %s); programs that name no partition use it", p.Port, p.Device, first, all)
				}
			})
		},
	},
}

// The interface identifiers of GIDs whose port has no GUID.
const (
	noGUID   = "0000:0000:0000:0000"
	allGUIDs = "ffff:ffff:ffff:ffff"
)

// withoutCarrier reports whether the NIC is known to be up without a carrier.
func (n *NIC) withoutCarrier(r *Report) bool {
	admin, _ := Read(r, n.label()+" adminUp", n.AdminUp)
	carrier, known := Read(r, n.label()+" carrier", n.Carrier)
	return admin && known && !carrier
}

func eachInfiniBandPort(f *Facts, r *Report, do func(*NIC, *Port)) {
	eachPort(f, r, func(n *NIC, p *Port) {
		if p.LinkLayer == InfiniBand {
			do(n, p)
		}
	})
}

// stateOf reports whether a state of a port was read.
func stateOf(r *Report, name, state string) bool {
	if state != "" && state != "?" {
		return true
	}
	r.lacks(name, "it could not be read")
	return false
}

// fullMember reports whether the highest bit of a partition key is set (InfiniBand
// specification, 10.9.1.1).
func fullMember(key string) bool {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16)
	return err == nil && n&0x8000 != 0
}

// partitionOf returns the partition of a key in sysfs, without the bit of full membership; 0 if it is no key.
func partitionOf(key string) netconf.PKey {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16)
	if err != nil {
		return 0
	}
	return netconf.PKey(n & 0x7fff)
}

// isRoCEv2 reports whether the entry has the type RoCE v2.
func (g *GID) isRoCEv2() bool { return strings.Contains(strings.ToLower(g.Type), "v2") }

// address returns the address that the GID is made of, invalid if its value is none.
func (g *GID) address() netip.Addr {
	a, _ := netip.ParseAddr(g.Value)
	return a.Unmap()
}

// withoutGID returns those of the addresses of which no table has a GID of RoCE v2. Addresses
// may have prefix lengths. Link-local ones are left out: some drivers make GIDs of others.
func withoutGID(addresses []string, tables ...[]GID) (missing []string) {
	has := map[netip.Addr]bool{}
	for _, gids := range tables {
		for i := range gids {
			if gids[i].isRoCEv2() {
				has[gids[i].address()] = true
			}
		}
	}
	for _, text := range addresses {
		bare, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(bare); err == nil && !a.IsLinkLocalUnicast() && !has[a.Unmap()] {
			missing = append(missing, text)
		}
	}
	return missing
}

// checkGIDs looks at the NICs on the host: POD-GIDV2 looks at those in pods.
func checkGIDs(f *Facts, r *Report) {
	eachRail(f, r, func(n *NIC) {
		ports, ok := Read(r, n.label()+" ports", n.Ports)
		if !ok || n.Holder != "" {
			return
		}
		var tables [][]GID
		entries := 0
		for i := range ports {
			if p := &ports[i]; p.LinkLayer != InfiniBand && p.TableSize > 1 {
				gids, ok := Read(r, n.label()+" gids", p.GIDs)
				if !ok {
					return
				}
				tables = append(tables, gids)
				entries += len(gids)
			}
		}
		if len(tables) == 0 {
			return
		}
		addresses, known := Read(r, n.label()+" addresses", n.Addresses)
		if !n.up(r) || !known {
			return
		}
		r.judged()
		missing := withoutGID(addresses, tables...)
		if len(addresses) == 0 && !slices.ContainsFunc(slices.Concat(tables...), func(g GID) bool { return g.isRoCEv2() }) {
			r.Find(n.Object(), "none of the %d GIDs of its ports is a RoCE v2 GID", entries)
		} else if len(missing) > 0 {
			r.Find(n.Object(), "no RoCE v2 GID for %s", strings.Join(missing, ", "))
		}
	})
}
