package software

import (
	"path"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// Rules returns the rules of this package, in the order of reports.
func Rules() []rule.Rule { return slices.Concat(ledgerRules, cniRules, kubeletRules, agentRules) }

var cniRules = []rule.Rule{
	{
		ID: "CNI-BINARY", Scope: rule.NodeScope, Severity: rule.Fail, Slow: true,
		Expects:     "The plugins in the CNI directory are the files that rail-agent installed.",
		Consequence: "Another program gives NICs to pods. It does not write records in the ledger, so NICs and addresses are lost when pods end.",
		Cure:        "Find and stop the program that replaced or removed the file. It may be a package, or a DaemonSet that copies the reference plugins. Then restart rail-agent, which installs the plugin again. Or install the plugins of rail-cni with a prefix in their names.",
		Check:       checkBinaries,
	},
	{
		ID: "CNI-MIX", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "All plugins of rail-cni on the node have the same version.",
		Consequence: "One plugin may write state that another plugin cannot read. An installation that was interrupted does not complete by itself.",
		Cure:        "Restart rail-agent, which installs all plugins. If the versions still differ, rail-agent's log has the reason.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.CNI == nil {
				return
			}
			binaries, _ := rule.Read(r, "plugins", f.CNI.Binaries)
			var texts []string
			versions := map[string]bool{}
			for i := range binaries {
				if b := &binaries[i]; b.Version != "" && (b.Installed == "" || b.Installed == b.SHA256) { // CNI-BINARY reports the other files
					r.Judged()
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
		ID: "CNI-MULTUS", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "A node of Kubernetes has Multus 4.0 or newer.",
		Consequence: "Without Multus no pod gets a second interface: the pods' annotation of networks has no effect. With an older Multus rail-cni is not tested.",
		Cure:        "Install Multus, or update it. The DaemonSet of Multus writes its configuration to /etc/cni/net.d.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.CNI == nil || f.Kubelet == nil {
				return
			}
			version, ok := rule.Read(r, "multus", f.CNI.Multus)
			if !ok {
				return
			}
			r.Judged()
			major, _, numbered := subject.MajorMinor(strings.TrimPrefix(version, "v"))
			switch {
			case version == "":
				r.Find("", "the node has no Multus")
			case numbered && major < 4:
				r.Find("", "the version of Multus is %s", version)
			}
		},
	},
	{
		ID: "CNI-PRIMARY", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "On a node with Multus, Multus' own configuration is the first by name in the directory of configurations. The runtime uses the first configuration.",
		Consequence: "The runtime calls another plugin, and pods get no second interface.",
		Cure:        "Remove the configurations whose names sort before Multus' configuration, or let Multus write a file whose name sorts first (00-multus.conf).",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.CNI == nil {
				return
			}
			version, _ := rule.Read(r, "multus", f.CNI.Multus)
			primary, ok := rule.Read(r, "primary configuration", f.CNI.Primary)
			if version != "" {
				r.Judged()
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

func checkBinaries(f *fact.Facts, r *rule.Report) {
	if f.CNI == nil {
		return
	}
	binaries, _ := rule.Read(r, "plugins", f.CNI.Binaries)
	for i := range binaries {
		if binaries[i].Installed != "" {
			r.Judged()
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
