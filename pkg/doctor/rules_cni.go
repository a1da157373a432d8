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
		Consequence: "Pods get NICs from another program, which does not know the ledger: NICs and addresses are lost when pods end.",
		Cure:        "Find the program that replaced or removed the file (a DaemonSet that copies the reference plugins, a package), stop it, and restart rail-agent, which installs the plugin again. Or install the plugins with a prefix in their names.",
		Check:       checkBinaries,
	},
	{
		ID: "CNI-MIX", Scope: NodeScope, Severity: Warn, Slow: true,
		Expects:     "All plugins of rail-cni on the node have the same version.",
		Consequence: "One plugin may write state that another cannot read. An unfinished installation does not complete by itself.",
		Cure:        "Restart rail-agent, which installs all plugins, and look at its log.",
		Check: func(f *Facts, r *Report) {
			if f.CNI == nil {
				return
			}
			binaries, _ := Read(r, "plugins", f.CNI.Binaries)
			var texts []string
			versions := map[string]bool{}
			for i := range binaries {
				if b := &binaries[i]; b.Version != "" && (b.Installed == "" || b.Installed == b.SHA256) { // CNI-BINARY has the others
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
		Consequence: "Without Multus no pod gets a second interface: the annotation with networks has no effect. rail-cni is not tested with older versions.",
		Cure:        "Install Multus (its DaemonSet writes the first configuration in /etc/cni/net.d), or update it.",
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
		Expects:     "On a node with Multus, the configuration that is first by name is Multus' own. The runtime uses the first one.",
		Consequence: "The runtime calls another plugin, and pods get no second interface.",
		Cure:        "Remove the configurations that come before Multus' own, or let Multus write a file whose name sorts first (00-multus.conf).",
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
				r.Find("", "Multus %s is there, and the directory of configurations has none", version)
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
		case b.Installed == "" || b.SHA256 == b.Installed: // others' plugins may be beside ours
		case b.SHA256 == "":
			r.Find(b.Path, "rail-agent installed it, and it is missing")
		default:
			whose := "another program"
			if b.RailCNI {
				whose = strings.TrimSpace("rail-cni " + b.Version)
			}
			r.Find(b.Path, "it is %s: its SHA-256 sum is %.12s, and that of the installed file is %.12s", whose, b.SHA256, b.Installed)
		}
	}
}

var agentRules = []Rule{
	{
		ID: "AGENT-DOWN", Scope: NodeScope, Severity: Fail,
		Expects:     "rail-agent runs on each node of Kubernetes.",
		Consequence: "NICs of killed pods return only with the next ADD or railctl gc; device pools of the node disappear after five minutes; pods get no information about their rails.",
		Cure:        "Look at the node's pod of the DaemonSet rail-agent (kubectl describe pod), and its log.",
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
		Consequence: "The agent may be unable to read what newer plugins write, or it has not installed its own plugins.",
		Cure:        "Wait for the rollout of the DaemonSet, or see the agent's log, which says why it did not install the plugins.",
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
		Cure:        "Run railctl gc, which says why the attachments cannot be ended.",
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
		Expects:     "The API server accepts the kubeconfig of the plugin whereabouts, even if another installer wrote it.",
		Consequence: "No new pod of this node gets an address of whereabouts, so pods stay in ContainerCreating; addresses of pods that end wait to be freed.",
		Cure:        "rail-agent replaces the kubeconfig by itself if whereabouts' installer wrote it and it leads to the agent's own pools. Otherwise renew the kubeconfig, or set whereabouts.replaceFiles in the chart.",
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
		Expects:     "Each rail and each pool of the node file selects NICs of this node, and every NIC that it names exists.",
		Consequence: "The node offers fewer NICs than it has, or none: pods stay Pending.",
		Cure:        "Correct the node file: railctl nics lists the NICs, railctl rails discover proposes rails. To find a NIC that was renamed, use its PCI address or an alternative name.",
		Check: func(f *Facts, r *Report) {
			if f.NICs == nil {
				return
			}
			problems, _ := Read(r, "rail and pool problems", f.NICs.Problems)
			for range railsOf(f, r) {
				r.judged()
			}
			for _, p := range problems {
				if !strings.Contains(p, resource.Deprecated+": ") { // such a key still counts
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
		Consequence: "The kubelet uses the plugin that registered last: the capacity changes suddenly, and a pod can get a device that another pod has.",
		Cure:        "Remove the other device plugin, or the pool; railctl migrate devices prints the steps.",
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
		Expects:     "For each device pool, the node's capacity equals the number of the pool's devices, and the allocatable number is not larger.",
		Consequence: "The scheduler places pods on nodes without a free NIC, or leaves NICs unused.",
		Cure:        "See rail-agent's log and Events, which say why it did not register the resource. Restart rail-agent; if that does not help, restart the kubelet.",
		Check:       checkCounts,
	},
	{
		ID: "DP-HCAMAX", Scope: NodeScope, Severity: Warn,
		Expects:     "A shared pool has no more devices than the GID tables of its NICs allow. Each pod needs four entries, two for its address and two for its IPv6 link-local address, and the NIC itself needs some.",
		Consequence: "The last pods start, but get no GID: they have an address, but no RDMA.",
		Cure:        "Lower max in the pool (rdmaHcaMax in k8s-rdma-shared-dev-plugin's configuration), or spread pods over more NICs. Pods without IPv6 (net.ipv6.conf.all.disable_ipv6) take only two entries, so twice as many fit; the rule does not take this into account.",
		Check:       checkHCAMax,
	},
	{
		ID: "K8S-NFD", Scope: NodeScope, Severity: Warn, API: true,
		Expects:     "If Node Feature Discovery labels the node, the node has the labels of its NVIDIA NICs (pci-15b3.present) and GPUs (pci-10de.present).",
		Consequence: "Pods and DaemonSets that select nodes by these labels, such as those of NVIDIA's operators, do not run here.",
		Cure:        "Add the PCI classes 02 and 03 to deviceClassWhitelist, and vendor to deviceLabelFields, in the configuration of Node Feature Discovery's worker.",
		Check:       checkLabels,
	},
}

// serves reports whether a sign of another device plugin names the resource, with its prefix
// or without, as a word of its own.
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
			return // AGENT-DOWN says so
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
			continue // DP-DUP says so
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
				r.Find("resource "+p.Resource, "it has %d devices, and the GID table of %s has %d entries, %d of them its own: room for %d pods", p.Count, name, room.size, room.own, room.pods).Part(name)
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
		// pci-<vendor>.present, or with a class before the vendor, or a device behind it.
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

// absent reports whether it is known that the agent does not run, which is a rule of its own.
func (a *Agent) absent() bool { return a.Running.OK() && !a.Running.Value }
