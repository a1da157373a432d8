package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

var cniRules = []Rule{
	{
		ID: "CNI-BINARY", Scope: NodeScope, Severity: Fail, Slow: true,
		Expects:     "The plugins in the CNI directory are the files that rail-agent installed.",
		Consequence: "Another program gives NICs to pods. It does not write records in the ledger, so NICs and addresses are lost when pods end.",
		Cure:        "Find and stop the program that replaced or removed the file. It may be a package, or a DaemonSet that copies the reference plugins. Then restart rail-agent, which installs the plugin again. Or install the plugins of rail-cni with a prefix in their names.",
		Check:       checkBinaries,
	},
	{
		ID: "CNI-MIX", Scope: NodeScope, Severity: Warn, Slow: true,
		Expects:     "All plugins of rail-cni on the node have the same version.",
		Consequence: "One plugin may write state that another plugin cannot read. An installation that was interrupted does not complete by itself.",
		Cure:        "Restart rail-agent, which installs all plugins. If the versions still differ, rail-agent's log has the reason.",
		Check: func(f *Facts, r *Report) {
			if f.CNI == nil {
				return
			}
			binaries, _ := Read(r, "plugins", f.CNI.Binaries)
			var texts []string
			versions := map[string]bool{}
			for i := range binaries {
				if b := &binaries[i]; b.Version != "" && (b.Installed == "" || b.Installed == b.SHA256) { // CNI-BINARY reports the other files
					r.judged()
					versions[b.Version] = true
					texts = append(texts, path.Base(b.Path)+" "+b.Version)
				}
			}
			if len(versions) > 1 {
				r.Find("", "%s", strings.Join(texts, ", "))
			}
		},
	},
	{
		ID: "CNI-MULTUS", Scope: NodeScope, Severity: Fail,
		Expects:     "A node of Kubernetes has Multus 4.0 or newer.",
		Consequence: "Without Multus no pod gets a second interface: the pods' annotation of networks has no effect. With an older Multus rail-cni is not tested.",
		Cure:        "Install Multus, or update it. The DaemonSet of Multus writes its configuration to /etc/cni/net.d.",
		Check: func(f *Facts, r *Report) {
			if f.CNI == nil || f.Kubelet == nil {
				return
			}
			version, ok := Read(r, "multus", f.CNI.Multus)
			if !ok {
				return
			}
			r.judged()
			major, _, numbered := kernelVersion(strings.TrimPrefix(version, "v"))
			switch {
			case version == "":
				r.Find("", "the node has no Multus")
			case numbered && major < 4:
				r.Find("", "the version of Multus is %s", version)
			}
		},
	},
	{
		ID: "CNI-PRIMARY", Scope: NodeScope, Severity: Fail,
		Expects:     "On a node with Multus, Multus' own configuration is the first by name in the directory of configurations. The runtime uses the first configuration.",
		Consequence: "The runtime calls another plugin, and pods get no second interface.",
		Cure:        "Remove the configurations whose names sort before Multus' configuration, or let Multus write a file whose name sorts first (00-multus.conf).",
		Check: func(f *Facts, r *Report) {
			if f.CNI == nil {
				return
			}
			version, _ := Read(r, "multus", f.CNI.Multus)
			primary, ok := Read(r, "primary configuration", f.CNI.Primary)
			if version != "" {
				r.judged()
			}
			switch {
			case !ok || version == "":
			case primary == "":
				r.Find("", "Multus %s is installed, but the directory of configurations is empty", version)
			case !strings.Contains(strings.ToLower(path.Base(primary)), "multus"):
				r.Find("", "the runtime uses %s", primary)
			}
		},
	},
}

func checkBinaries(f *Facts, r *Report) {
	if f.CNI == nil {
		return
	}
	binaries, _ := Read(r, "plugins", f.CNI.Binaries)
	for i := range binaries {
		if binaries[i].Installed != "" {
			r.judged()
		}
		switch b := &binaries[i]; {
		case b.Installed == "" || b.SHA256 == b.Installed: // plugins of other projects may be in the same directory
		case b.SHA256 == "":
			r.Find(b.Path, "rail-agent installed this file, but the file is missing")
		default:
			whose := "another program"
			if b.RailCNI {
				whose = strings.TrimSpace("rail-cni " + b.Version)
			}
			r.Find(b.Path, "it is %s: its SHA-256 sum is %.12s, but rail-agent installed a file with the sum %.12s", whose, b.SHA256, b.Installed)
		}
	}
}

var agentRules = []Rule{
	{
		ID: "AGENT-DOWN", Scope: NodeScope, Severity: Fail,
		Expects:     "rail-agent runs on each node of Kubernetes.",
		Consequence: "NICs of killed pods return only with the next ADD or railctl gc. The node's device pools disappear after five minutes. Pods get no information about their rails.",
		Cure:        "Look at the rail-agent pod of this node (kubectl describe pod) and at its log.",
		Check: func(f *Facts, r *Report) {
			if f.Agent == nil || f.Kubelet == nil {
				return
			}
			r.judged()
			if running, ok := Read(r, "agent running", f.Agent.Running); ok && !running {
				r.Find("", "rail-agent does not run")
			}
		},
	},
	{
		ID: "AGENT-VERSION", Scope: NodeScope, Severity: Warn, Slow: true,
		Expects:     "rail-agent and the plugins on the node have the same version.",
		Consequence: "rail-agent may be unable to read what newer plugins write. Or rail-agent has not installed its own plugins.",
		Cure:        "Wait until the rollout of the DaemonSet is complete. If the versions still differ, rail-agent's log says why it did not install the plugins.",
		Check: func(f *Facts, r *Report) {
			if f.Agent == nil || f.CNI == nil || f.Agent.absent() {
				return
			}
			version, ok := Read(r, "agent version", f.Agent.Version)
			binaries, _ := Read(r, "plugins", f.CNI.Binaries)
			var versions []string
			for i := range binaries {
				if v := binaries[i].Version; v != "" && !slices.Contains(versions, v) {
					versions = append(versions, v)
				}
			}
			if !ok || version == "" || len(versions) == 0 {
				return
			}
			r.judged()
			if !slices.Contains(versions, version) {
				r.Find("", "rail-agent is %s, the plugins are %s", version, strings.Join(versions, ", "))
			}
		},
	},
	{
		ID: "AGENT-RETURN", Scope: NodeScope, Severity: Fail,
		Expects:     "rail-agent has ended the attachments of all dead pods.",
		Consequence: "The NICs and addresses of these pods are not free.",
		Cure:        "Run railctl gc on the node. It tries again to end the attachments, and prints the reason for each one that it cannot end.",
		Check: func(f *Facts, r *Report) {
			if f.Agent == nil || f.Agent.absent() {
				return
			}
			r.judged()
			if n, _ := Read(r, "attachments not returned", f.Agent.NotReturned); n > 0 {
				r.Find("", "%d attachments of dead pods could not be ended", n).Fix("railctl gc")
			}
		},
	},
	{
		ID: "IPAM-CRED", Scope: NodeScope, Severity: Fail,
		Expects:     "The API server accepts the kubeconfig of the plugin whereabouts. This also applies to a kubeconfig that another installer wrote.",
		Consequence: "whereabouts cannot assign addresses on this node, so new pods stay in ContainerCreating. The addresses of pods that end are not freed until the kubeconfig works again.",
		Cure:        "If the installer of whereabouts wrote the kubeconfig, and it leads to the same pools as rail-agent's own, wait: rail-agent replaces it. Otherwise renew the kubeconfig, or set whereabouts.replaceFiles in the chart.",
		Check: func(f *Facts, r *Report) {
			if f.Agent == nil || f.Agent.absent() {
				return
			}
			k, _ := Read(r, "kubeconfig of whereabouts", f.Agent.Kubeconfig)
			if k.Path == "" {
				return // the agent does not maintain it
			}
			r.judged()
			if k.Refused != "" {
				r.Find(k.Path, "%s", k.Refused)
			}
		},
	},
}

var kubeletRules = []Rule{
	{
		ID: "DP-SELECT", Scope: NodeScope, Severity: Fail,
		Expects:     "Each rail and each device pool in the node file selects at least one NIC of this node. Each NIC that the node file names exists.",
		Consequence: "The node offers only a part of its NICs, or none. Pods that request a NIC can stay Pending.",
		Cure:        "Correct the node file: railctl nics lists the NICs, and railctl rails discover proposes rails. If a NIC was renamed, find it in the list by its PCI address or by an alternative name.",
		Check: func(f *Facts, r *Report) {
			if f.NICs == nil {
				return
			}
			problems, _ := Read(r, "rail and pool problems", f.NICs.Problems)
			for range railsOf(f, r) {
				r.judged()
			}
			for _, p := range problems {
				if !strings.Contains(p, resource.Deprecated+": ") { // a deprecated key still has its effect
					r.Find("", "%s", p).Part(p)
				}
			}
			if f.Kubelet == nil {
				return
			}
			pools, _ := Read(r, "pools", f.Kubelet.Pools)
			for i := range pools {
				p := &pools[i]
				r.judged()
				told := slices.ContainsFunc(problems, func(text string) bool { return strings.Contains(text, p.Resource) })
				if len(p.NICs) == 0 && !told {
					r.Find("resource "+p.Resource, "the pool has no NIC")
				}
			}
		},
	},
	{
		ID: "DP-DUP", Scope: NodeScope, Severity: Fail,
		Expects:     "Only one device plugin serves each resource.",
		Consequence: "The kubelet uses the device plugin that registered last. The capacity changes suddenly, and a pod can get a device that another pod has.",
		Cure:        "Remove either the other device plugin or the pool in the node file. railctl migrate devices prints the steps.",
		Check: func(f *Facts, r *Report) {
			if f.Kubelet == nil {
				return
			}
			foreign, _ := Read(r, "foreign device plugins", f.Kubelet.Foreign)
			pools, _ := Read(r, "pools", f.Kubelet.Pools)
			for i := range pools {
				name := pools[i].Resource
				r.judged()
				for _, sign := range foreign {
					if serves(sign, name) {
						r.Find("resource "+name, "rail-agent and another plugin serve it: %s", sign)
					}
				}
			}
		},
	},
	{
		ID: "DP-COUNT", Scope: NodeScope, Severity: Fail, API: true,
		Expects:     "For each device pool, the node's capacity is the number of devices in the pool, and the allocatable number is not larger than that.",
		Consequence: "The scheduler places pods on the node although no NIC is free, or it leaves NICs unused.",
		Cure:        "Look for the reason in rail-agent's log and Events. Restart rail-agent. If the numbers still differ, restart the kubelet.",
		Check:       checkCounts,
	},
	{
		ID: "DP-HCAMAX", Scope: NodeScope, Severity: Warn,
		Expects:     "A shared pool has no more devices than the GID tables of its NICs have room for. Each pod needs four entries: two for its address and two for its IPv6 link-local address. The NIC's own addresses need some entries as well.",
		Consequence: "When the table is full, further pods start and have an address, but they get no GID. So they have no RDMA.",
		Cure:        "Lower max in the pool (rdmaHcaMax in the configuration of k8s-rdma-shared-dev-plugin), or spread the pods over more NICs. If the pods have no IPv6 (net.ipv6.conf.all.disable_ipv6), each needs only two entries and twice as many fit. This rule does not know that, so ignore it in this case (--ignore DP-HCAMAX).",
		Check:       checkHCAMax,
	},
	{
		ID: "K8S-NFD", Scope: NodeScope, Severity: Warn, API: true,
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

func checkCounts(f *Facts, r *Report) {
	if f.Kubelet == nil {
		return
	}
	if f.Agent != nil {
		if running, ok := Read(r, "agent running", f.Agent.Running); !ok || !running {
			return // AGENT-DOWN reports it
		}
	}
	pools, _ := Read(r, "pools", f.Kubelet.Pools)
	capacity, ok := Read(r, "capacity", f.Kubelet.Capacity)
	allocatable, also := Read(r, "allocatable", f.Kubelet.Allocatable)
	foreign, _ := Read(r, "foreign device plugins", f.Kubelet.Foreign)
	if !ok || !also {
		return
	}
	for i := range pools {
		p := &pools[i]
		if slices.ContainsFunc(foreign, func(sign string) bool { return serves(sign, p.Resource) }) {
			continue // DP-DUP reports it
		}
		r.judged()
		if has := capacity[p.Resource]; has != p.Count {
			r.Find("resource "+p.Resource, "the pool has %d devices, and the node's capacity is %d", p.Count, has)
		} else if allocatable[p.Resource] > p.Count {
			r.Find("resource "+p.Resource, "the pool has %d devices, and %d are allocatable", p.Count, allocatable[p.Resource])
		}
	}
}

func checkHCAMax(f *Facts, r *Report) {
	if f.Kubelet == nil || f.NICs == nil {
		return
	}
	pools, _ := Read(r, "pools", f.Kubelet.Pools)
	type capacity struct{ size, own, pods int }
	rooms := map[string]capacity{}
	eachNIC(f, r, func(n *NIC) {
		if n.Rail == nil && n.Children == 0 {
			return
		}
		ports, _ := Read(r, n.label()+" ports", n.Ports)
		for i := range ports {
			if p := &ports[i]; p.LinkLayer != InfiniBand && p.TableSize > 1 {
				gids, _ := Read(r, n.label()+" gids", p.GIDs)
				free := capacity{size: p.TableSize}
				for _, g := range gids {
					if g.Netdev == n.Name {
						free.own++
					}
				}
				free.pods = (free.size - free.own) / rdma.EntriesOf(1)
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
			r.judged()
			if p.Count > int64(room.pods) {
				r.Find("resource "+p.Resource, "it has %d devices; the GID table of %s has %d entries, of which the NIC itself uses %d: room for %d pods", p.Count, name, room.size, room.own, room.pods).Part(name)
				break
			}
		}
	}
}

func checkLabels(f *Facts, r *Report) {
	if f.Kubelet == nil || f.NICs == nil {
		return
	}
	const prefix = "feature.node.kubernetes.io/"
	labels, _ := Read(r, "labels", f.Kubelet.Labels)
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
	eachNIC(f, r, func(n *NIC) { has[vendorMellanox] = has[vendorMellanox] || n.isMellanox() })
	gpus, _ := Read(r, "gpus", f.NICs.GPUs)
	for _, g := range gpus {
		has[vendorNVIDIA] = has[vendorNVIDIA] || g.Vendor == vendorNVIDIA
	}
	for _, vendor := range []string{vendorMellanox, vendorNVIDIA} {
		if !found || !has[vendor] {
			continue
		}
		r.judged()
		if !present[vendor] {
			r.Find("", "there is no label %s", fmt.Sprintf("%spci-%s.present", prefix, vendor))
		}
	}
}

// absent reports whether it is known that the agent does not run. The rule AGENT-DOWN reports this,
// so other rules leave such an agent out.
func (a *Agent) absent() bool { return a.Running.OK() && !a.Running.Value }
