package software

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

var kubeletRules = []rule.Rule{
	{
		ID: "DP-SELECT", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Each rail and each device pool in the node file selects at least one NIC of this node. Each NIC that the node file names exists.",
		Consequence: "The node offers only a part of its NICs, or none. Pods that request a NIC can stay Pending.",
		Cure:        "Correct the node file: railctl nics lists the NICs, and railctl rails discover proposes rails. If a NIC was renamed, find it in the list by its PCI address or by an alternative name.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.NICs == nil {
				return
			}
			problems, _ := rule.Read(r, "rail and pool problems", f.NICs.Problems)
			for range subject.NamesByRail(f, r) {
				r.Judged()
			}
			for _, p := range problems {
				if !strings.Contains(p, resource.Deprecated+": ") { // a deprecated key still has its effect
					r.Find("", "%s", p).Part(p)
				}
			}
			if f.Kubelet == nil {
				return
			}
			pools, _ := rule.Read(r, "pools", f.Kubelet.Pools)
			for i := range pools {
				p := &pools[i]
				r.Judged()
				reported := slices.ContainsFunc(problems, func(text string) bool { return strings.Contains(text, p.Resource) })
				if len(p.NICs) == 0 && !reported {
					r.Find("resource "+p.Resource, "the pool has no NIC")
				}
			}
		},
	},
	{
		ID: "DP-DUP", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "Only one device plugin serves each resource.",
		Consequence: "The kubelet uses the device plugin that registered last. The capacity changes suddenly, and a pod can get a device that another pod has.",
		Cure:        "Remove either the other device plugin or the pool in the node file. railctl migrate devices prints the steps.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Kubelet == nil {
				return
			}
			foreign, _ := rule.Read(r, "foreign device plugins", f.Kubelet.Foreign)
			pools, _ := rule.Read(r, "pools", f.Kubelet.Pools)
			for i := range pools {
				name := pools[i].Resource
				r.Judged()
				for _, sign := range foreign {
					if serves(sign, name) {
						r.Find("resource "+name, "rail-agent and another plugin serve it: %s", sign)
					}
				}
			}
		},
	},
	{
		ID: "DP-COUNT", Scope: rule.NodeScope, Severity: rule.Fail, API: true,
		Expects:     "For each device pool, the node's capacity is the number of devices in the pool, and the allocatable number is not larger than that.",
		Consequence: "The scheduler places pods on the node although no NIC is free, or it leaves NICs unused.",
		Cure:        "Look for the reason in rail-agent's log and Events. Restart rail-agent. If the numbers still differ, restart the kubelet.",
		Check:       checkCounts,
	},
	{
		ID: "DP-HCAMAX", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects:     "A shared pool has no more devices than the GID tables of its NICs have room for. Each pod needs four entries: two for its address and two for its IPv6 link-local address. The NIC's own addresses need some entries as well.",
		Consequence: "When the table is full, further pods start and have an address, but they get no GID. So they have no RDMA.",
		Cure:        "Lower max in the pool (rdmaHcaMax in the configuration of k8s-rdma-shared-dev-plugin), or spread the pods over more NICs. If the pods have no IPv6 (net.ipv6.conf.all.disable_ipv6), each needs only two entries and twice as many fit. This rule does not know that, so ignore it in this case (--ignore DP-HCAMAX).",
		Check:       checkHCAMax,
	},
	{
		ID: "K8S-NFD", Scope: rule.NodeScope, Severity: rule.Warn, API: true,
		Expects:     "If Node Feature Discovery has put labels on the node, they include the labels of the node's NVIDIA NICs (pci-15b3.present) and GPUs (pci-10de.present).",
		Consequence: "Pods and DaemonSets that select nodes by these labels do not run here. NVIDIA's operators select nodes in this way.",
		Cure:        "In the configuration of Node Feature Discovery's worker, add the PCI classes 02 and 03 to deviceClassWhitelist, and add vendor to deviceLabelFields.",
		Check:       checkLabels,
	},
}

// serves reports whether sign, which describes another device plugin, contains the resource's name
// as a whole word. The name counts with and without its prefix.
func serves(sign, name string) bool {
	return slices.Contains(strings.FieldsFunc(sign, func(c rune) bool { return strings.ContainsRune(" ,:;()\"", c) }), name) ||
		slices.Contains(strings.FieldsFunc(sign, func(c rune) bool { return strings.ContainsRune(" ,:;()\"/.", c) }), path.Base(name))
}

func checkCounts(f *fact.Facts, r *rule.Report) {
	if f.Kubelet == nil {
		return
	}
	if f.Agent != nil {
		if running, ok := rule.Read(r, "agent running", f.Agent.Running); !ok || !running {
			return // AGENT-DOWN reports it
		}
	}
	pools, _ := rule.Read(r, "pools", f.Kubelet.Pools)
	capacity, ok := rule.Read(r, "capacity", f.Kubelet.Capacity)
	allocatable, also := rule.Read(r, "allocatable", f.Kubelet.Allocatable)
	foreign, _ := rule.Read(r, "foreign device plugins", f.Kubelet.Foreign)
	if !ok || !also {
		return
	}
	for i := range pools {
		p := &pools[i]
		if slices.ContainsFunc(foreign, func(sign string) bool { return serves(sign, p.Resource) }) {
			continue // DP-DUP reports it
		}
		r.Judged()
		if has := capacity[p.Resource]; has != p.Count {
			r.Find("resource "+p.Resource, "the pool has %d devices, and the node's capacity is %d", p.Count, has)
		} else if allocatable[p.Resource] > p.Count {
			r.Find("resource "+p.Resource, "the pool has %d devices, and %d are allocatable", p.Count, allocatable[p.Resource])
		}
	}
}

func checkHCAMax(f *fact.Facts, r *rule.Report) {
	if f.Kubelet == nil || f.NICs == nil {
		return
	}
	pools, _ := rule.Read(r, "pools", f.Kubelet.Pools)
	type capacity struct{ size, used, pods int }
	rooms := map[string]capacity{}
	subject.EachNIC(f, r, func(n *fact.NIC) {
		if n.Rail == nil && n.Children == 0 {
			return
		}
		ports, _ := rule.Read(r, n.Label()+" ports", n.Ports)
		for i := range ports {
			if p := &ports[i]; p.LinkLayer != fact.InfiniBand && p.TableSize > 1 {
				gids, _ := rule.Read(r, n.Label()+" gids", p.GIDs)
				free := capacity{size: p.TableSize}
				for _, g := range gids {
					if g.Netdev == n.Name {
						free.used++
					}
				}
				free.pods = (free.size - free.used) / ibaddr.EntriesOf(1)
				rooms[n.Name], rooms[n.PCI] = free, free
			}
		}
	})
	delete(rooms, "")
	for i := range pools {
		p := &pools[i]
		for _, name := range p.NICs {
			room, ok := rooms[name]
			if !ok || p.Kind != "shared" {
				continue
			}
			r.Judged()
			if p.Count > int64(room.pods) {
				r.Find("resource "+p.Resource, "it has %d devices; the GID table of %s has %d entries, of which the NIC itself uses %d: room for %d pods", p.Count, name, room.size, room.used, room.pods).Part(name)
				break
			}
		}
	}
}

func checkLabels(f *fact.Facts, r *rule.Report) {
	if f.Kubelet == nil || f.NICs == nil {
		return
	}
	const prefix = "feature.node.kubernetes.io/"
	labels, _ := rule.Read(r, "labels", f.Kubelet.Labels)
	found := false
	present := map[string]bool{}
	for key := range labels {
		name, ok := strings.CutPrefix(key, prefix)
		found = found || ok
		// The label is pci-<vendor>.present. It can also have a class before the vendor, or a
		// device after the vendor.
		if pci, ok := strings.CutPrefix(name, "pci-"); ok && strings.HasSuffix(pci, ".present") {
			for part := range strings.SplitSeq(strings.TrimSuffix(pci, ".present"), "_") {
				present[part] = true
			}
		}
	}
	has := map[string]bool{}
	subject.EachNIC(f, r, func(n *fact.NIC) { has[fact.VendorMellanox] = has[fact.VendorMellanox] || n.IsMellanox() })
	gpus, _ := rule.Read(r, "gpus", f.NICs.GPUs)
	for _, g := range gpus {
		has[fact.VendorNVIDIA] = has[fact.VendorNVIDIA] || g.Vendor == fact.VendorNVIDIA
	}
	for _, vendor := range []string{fact.VendorMellanox, fact.VendorNVIDIA} {
		if !found || !has[vendor] {
			continue
		}
		r.Judged()
		if !present[vendor] {
			r.Find("", "there is no label %s", fmt.Sprintf("%spci-%s.present", prefix, vendor))
		}
	}
}
