package nics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// up reports whether the NIC is known to be up and to have a carrier. It notes missing facts in r.
func up(n *fact.NIC, r *rule.Report) bool {
	admin, _ := rule.Read(r, n.Label()+" adminUp", n.AdminUp)
	carrier, _ := rule.Read(r, n.Label()+" carrier", n.Carrier)
	return admin && carrier
}

var portRules = []rule.Rule{
	{
		ID: "NIC-PORT", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "If a rail's NIC is up and has a carrier, its RDMA port is active.",
		Consequence: "Programs do not use the port, and print no message about it. NCCL runs without this rail.",
		Cure:        "Search the kernel's log for the driver's reason. Set the NIC down and up, or reload its RDMA driver.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPort(f, r, func(n *fact.NIC, p *fact.Port) {
				if heldInKnownPod(n, f) || p.LinkLayer == fact.InfiniBand && (p.State == "INIT" || p.State == "ARMED") {
					r.Judged()
					return // POD-PORT judges the port, or IB-SM reports the reason
				}
				if !subject.KnownState(r, p.Device+" state", p.State) || !up(n, r) {
					return
				}
				r.Judged()
				if p.State != "ACTIVE" {
					r.Find(n.Object(), "port %d of %s is %s, although the NIC has a carrier", p.Port, p.Device, p.State)
				}
			})
		},
	},
	{
		ID: "NIC-PHYS", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "If a rail's NIC has a carrier, the physical link of its RDMA port is up.",
		Consequence: "The driver reports two different states of the same link. RDMA may not work on this rail.",
		Cure:        "Set the NIC down and up. If the states still differ, reset the NIC or update its firmware.",
		Check: func(f *fact.Facts, r *rule.Report) {
			subject.EachPort(f, r, func(n *fact.NIC, p *fact.Port) {
				if !subject.KnownState(r, p.Device+" physState", p.PhysState) || !up(n, r) {
					return
				}
				r.Judged()
				if p.PhysState != "LinkUp" {
					r.Find(n.Object(), "the physical state of port %d of %s is %s, although the NIC has a carrier", p.Port, p.Device, p.PhysState)
				}
			})
		},
	},
	{
		ID: "NIC-ACTIVEMTU", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "A RoCE rail with 100 Gb/s or more has an MTU of at least 4192 bytes, so that RDMA packets carry 4096 bytes.",
		Consequence: "RDMA sends small packets, which costs up to 30 to 50 % of the bandwidth.",
		Cure:        "Set the MTU of the NIC, of the networks on the NIC and of the switches to 9000, or to the largest MTU that the fabric carries.",
		Check: func(f *fact.Facts, r *rule.Report) {
			const fast, maxMTU = 100_000, 4096
			subject.EachPort(f, r, func(n *fact.NIC, p *fact.Port) {
				mtu, _ := rule.Read(r, n.Label()+" mtu", n.MTU)
				mbps, _ := rule.Read(r, n.Label()+" mbps", n.Mbps)
				if p.LinkLayer == fact.InfiniBand || mtu == 0 || mbps < fast {
					return
				}
				r.Judged()
				if p.ActiveMTU < maxMTU {
					r.Find(n.Object(), "its MTU is %d at %g Gb/s, so RDMA packets of port %d of %s carry %d bytes", mtu, float64(mbps)/1000, p.Port, p.Device, p.ActiveMTU)
				}
			})
		},
	},
	{
		ID: "NIC-GIDV2", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "If a rail's Ethernet NIC is up, each of its addresses has a GID of the type RoCE v2.",
		Consequence: "Programs cannot use RDMA from this address, or choose another GID that peers do not reach.",
		Cure:        "Set the NIC down and up, so that the kernel makes its GIDs again. If an IPv4 address has a peer, the kernel makes the GID from the peer's address: configure the address without a peer. If the port has no RoCE v2 GID at all, check the driver's parameter enable_roce (devlink dev param show).",
		Check:       checkGIDs,
	},
	{
		ID: "NIC-GIDFULL", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "In the GID table of each rail's port, at least a tenth of the entries are free, and at least 8 entries are free.",
		Consequence: "When the table is full, a new macvlan gets an address but no GID. The pod starts, but has no RDMA.",
		Cure:        "Put fewer pods on the NIC, or spread the pods over more NICs. Every link on top of the NIC takes entries, even in exclusive mode, and even if its pod does not use RDMA. A link without IPv6 takes half as many entries.",
		Check: func(f *fact.Facts, r *rule.Report) {
			const small = 16 // a device with a smaller table does not make GIDs from addresses (iWARP)
			subject.EachPort(f, r, func(n *fact.NIC, p *fact.Port) {
				gids, ok := rule.Read(r, n.Label()+" gids", p.GIDs)
				if !ok || p.TableSize < small {
					return
				}
				r.Judged()
				if free := p.TableSize - len(gids); free < max(8, p.TableSize/10) {
					r.Find(n.Object(), "the GID table of port %d of %s has %d entries, of which %d are free", p.Port, p.Device, p.TableSize, max(free, 0))
				}
			})
		},
	},
	{
		ID: "IB-SM", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "A subnet manager has configured the InfiniBand port of each rail, and the interface has joined its multicast group.",
		Consequence: "Programs cannot use the rail, because the port stays in the state INIT or the interface has no carrier.",
		Cure:        "Start the subnet manager (opensm, UFM, or the subnet manager of the switch), and check that the port is in its fabric. An active port does not prove that a subnet manager runs. Run sminfo to see whether one runs.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachInfiniBandPort(f, r, func(n *fact.NIC, p *fact.Port) {
				r.Judged()
				sm, ok := rule.Read(r, p.Device+" smLID", p.SMLID)
				switch {
				case p.PhysState == "LinkUp" && (p.State == "INIT" || p.State == "ARMED"):
					r.Find(n.Object(), "port %d of %s has a link, but waits for a subnet manager (state %s)", p.Port, p.Device, p.State)
				case ok && sm == 0 && p.State == "ACTIVE":
					r.Find(n.Object(), "port %d of %s knows no subnet manager", p.Port, p.Device)
				case p.State == "ACTIVE" && n.LinkType == "infiniband" && withoutCarrier(n, r):
					r.Find(n.Object(), "port %d of %s is active, but %s is up without a carrier: the interface waits for its multicast group", p.Port, p.Device, n.Name)
				}
			})
		},
	},
	{
		ID: "IB-LID", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each active InfiniBand port has a local identifier (LID).",
		Consequence: "No packet in the fabric reaches the port.",
		Cure:        "Restart the subnet manager, or set the port down and up.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachInfiniBandPort(f, r, func(n *fact.NIC, p *fact.Port) {
				lid, ok := rule.Read(r, p.Device+" lid", p.LID)
				if !ok || p.State != "ACTIVE" {
					return
				}
				r.Judged()
				if lid == 0 {
					r.Find(n.Object(), "port %d of %s is active and has no LID", p.Port, p.Device)
				}
			})
		},
	},
	{
		ID: "IB-GUID-ZERO", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "The GUID of each InfiniBand port is neither all zeros (as on a new virtual function) nor all ones.",
		Consequence: "A subnet manager ignores a port whose GUID is all zeros, so the port stays in the state INIT. It treats all ports whose GUID is all ones as the same port. host-device refuses a NIC with such a GUID. ib-sriov also refuses it, except if ib-sriov has a GUID for the pod.",
		Cure:        "Set both GUIDs of the virtual function through its PF (ip link set PF vf N node_guid GUID, and the same command with port_guid). Then rebind the function's driver. sriov-network-operator does this when it creates virtual functions. If ib-sriov sets the GUIDs of all pods that use these functions, ignore this rule (--ignore IB-GUID-ZERO).",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachInfiniBandPort(f, r, func(n *fact.NIC, p *fact.Port) {
				gids, ok := rule.Read(r, p.Device+" gids", p.GIDs)
				if !ok || len(gids) == 0 {
					return
				}
				r.Judged()
				guid := gids[0].Value[max(0, len(gids[0].Value)-len(noGUID)):]
				if guid == noGUID || guid == allGUIDs {
					r.Find(n.Object(), "the GUID of port %d of %s is %s", p.Port, p.Device, guid)
				}
			})
		},
	},
	{
		ID: "IB-SM-LENT", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No subnet manager runs on the port of a NIC that may be lent to pods.",
		Consequence: "In exclusive RDMA mode, ADD refuses the NIC if the network does not have subnet-manager in \"allow\". In shared mode, a pod gets the interface and can set the link down.",
		Cure:        "Run the subnet manager elsewhere, for example on the switch, in UFM or on a node without rails. Or forbid lending this NIC with the key nics of the node file.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachInfiniBandPort(f, r, func(n *fact.NIC, p *fact.Port) {
				manager, ok := rule.Read(r, p.Device+" isSM", p.IsSM)
				if !ok || n.Protected != "" {
					return
				}
				r.Judged()
				if manager {
					r.Find(n.Object(), "a subnet manager runs on port %d of %s", p.Port, p.Device)
				}
			})
		},
	},
	{
		ID: "IB-ORPHAN-CHILD", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "No pod that has ended has left a child of an InfiniBand interface (ip link add … type ipoib) on the host.",
		Consequence: "The child occupies a queue pair, and host-device refuses the NIC (guardrail children). ipoib-cni leaves a child behind for each pod that was killed.",
		Cure:        "If no service of the node uses the child, delete it: ip link del NAME.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.NICs == nil {
				return
			}
			others, _ := rule.Read(r, "other interfaces", f.NICs.Others)
			for i := range others {
				o := &others[i]
				if o.Kind != fact.IPoIBKind {
					continue
				}
				r.Judged()
				if !o.AdminUp && !o.Attachment { // the kernel sets an interface down when it moves the interface back from a network namespace
					r.Find("interface "+o.Name, "it is a child of an InfiniBand interface, it is down, and no attachment has it")
				}
			}
		},
	},
	{
		ID: "IB-PKEY", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "Each InfiniBand port is a full member of the partition at index 0 of its table of partition keys.",
		Consequence: "Limited members of a partition reach only full members, not other limited members. So the nodes of a job cannot connect to each other. Programs that do not name a partition use index 0: for example perftest, and NCCL without NCCL_IB_PKEY.",
		Cure:        "Make the port a full member of the partition in the subnet manager's configuration (=full in partitions.conf; for the default partition Default=0x7fff: ALL=full). Or tell the programs the index of a partition of which the port is a full member.",
		Check: func(f *fact.Facts, r *rule.Report) {
			eachInfiniBandPort(f, r, func(n *fact.NIC, p *fact.Port) {
				keys, ok := rule.Read(r, p.Device+" pkeys", p.PKeys)
				if !ok || p.State != "ACTIVE" {
					return
				}
				r.Judged()
				first, table := "empty", []string{}
				for _, k := range keys {
					table = append(table, fmt.Sprintf("%d=%s", k.Index, k.Key))
					if k.Index == 0 {
						first = k.Key
					}
				}
				all := strings.Join(table, " ")
				switch {
				case !slices.ContainsFunc(keys, func(k fact.PKey) bool { return fullMember(k.Key) }):
					r.Find(n.Object(), "the partition keys of port %d of %s are %s, and none of them makes the port a full member", p.Port, p.Device, all)
				case first == "empty":
					r.Find(n.Object(), "index 0 of the partition keys of port %d of %s is empty (all: %s); programs that do not name a partition use index 0", p.Port, p.Device, all)
				case !fullMember(first):
					r.Find(n.Object(), "index 0 of the partition keys of port %d of %s is %s, which makes the port a limited member (all: %s); programs that do not name a partition use index 0", p.Port, p.Device, first, all)
				}
			})
		},
	},
}

// These are the interface identifiers in the GIDs of a port that has no valid GUID.
const (
	noGUID   = "0000:0000:0000:0000"
	allGUIDs = "ffff:ffff:ffff:ffff"
)

// withoutCarrier reports whether the NIC is known to be up but to have no carrier.
func withoutCarrier(n *fact.NIC, r *rule.Report) bool {
	admin, _ := rule.Read(r, n.Label()+" adminUp", n.AdminUp)
	carrier, known := rule.Read(r, n.Label()+" carrier", n.Carrier)
	return admin && known && !carrier
}

func eachInfiniBandPort(f *fact.Facts, r *rule.Report, do func(*fact.NIC, *fact.Port)) {
	subject.EachPort(f, r, func(n *fact.NIC, p *fact.Port) {
		if p.LinkLayer == fact.InfiniBand {
			do(n, p)
		}
	})
}

// fullMember reports whether a partition key makes its port a full member: the highest bit of the
// key is set (InfiniBand specification, 10.9.1.1).
func fullMember(key string) bool {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16)
	return err == nil && n&0x8000 != 0
}

// checkGIDs judges the NICs on the host. POD-GIDV2 judges the NICs in pods.
func checkGIDs(f *fact.Facts, r *rule.Report) {
	subject.EachRail(f, r, func(n *fact.NIC) {
		ports, ok := rule.Read(r, n.Label()+" ports", n.Ports)
		if !ok || n.Holder != "" {
			return
		}
		var tables [][]fact.GID
		entries := 0
		for i := range ports {
			if p := &ports[i]; p.LinkLayer != fact.InfiniBand && p.TableSize > 1 {
				gids, ok := rule.Read(r, n.Label()+" gids", p.GIDs)
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
		addresses, known := rule.Read(r, n.Label()+" addresses", n.Addresses)
		if !up(n, r) || !known {
			return
		}
		r.Judged()
		missing := subject.WithoutGID(addresses, tables...)
		if len(addresses) == 0 && !slices.ContainsFunc(slices.Concat(tables...), func(g fact.GID) bool { return g.IsRoCEv2() }) {
			r.Find(n.Object(), "none of the %d GIDs of its ports is a RoCE v2 GID", entries)
		} else if len(missing) > 0 {
			r.Find(n.Object(), "no RoCE v2 GID for %s", strings.Join(missing, ", "))
		}
	})
}
