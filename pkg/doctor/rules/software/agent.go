package software

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

var agentRules = []rule.Rule{
	{
		ID: "AGENT-DOWN", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "rail-agent runs on each node of Kubernetes.",
		Consequence: "NICs of killed pods return only with the next ADD or railctl gc. The node's device pools disappear after five minutes. Pods get no information about their rails.",
		Cure:        "Look at the rail-agent pod of this node (kubectl describe pod) and at its log.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Agent == nil || f.Kubelet == nil {
				return
			}
			r.Judged()
			if running, ok := rule.Read(r, "agent running", f.Agent.Running); ok && !running {
				r.Find("", "rail-agent does not run")
			}
		},
	},
	{
		ID: "AGENT-VERSION", Scope: rule.NodeScope, Severity: rule.Warn, Slow: true,
		Expects:     "rail-agent and the plugins on the node have the same version.",
		Consequence: "rail-agent may be unable to read what newer plugins write. Or rail-agent has not installed its own plugins.",
		Cure:        "Wait until the rollout of the DaemonSet is complete. If the versions still differ, rail-agent's log says why it did not install the plugins.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Agent == nil || f.CNI == nil || f.Agent.Absent() {
				return
			}
			version, ok := rule.Read(r, "agent version", f.Agent.Version)
			binaries, _ := rule.Read(r, "plugins", f.CNI.Binaries)
			var versions []string
			for i := range binaries {
				if v := binaries[i].Version; v != "" && !slices.Contains(versions, v) {
					versions = append(versions, v)
				}
			}
			if !ok || version == "" || len(versions) == 0 {
				return
			}
			r.Judged()
			if !slices.Contains(versions, version) {
				r.Find("", "rail-agent is %s, the plugins are %s", version, strings.Join(versions, ", "))
			}
		},
	},
	{
		ID: "AGENT-RETURN", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "rail-agent has ended the attachments of all dead pods.",
		Consequence: "The NICs and addresses of these pods are not free.",
		Cure:        "Run railctl gc on the node. It tries again to end the attachments, and prints the reason for each one that it cannot end.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Agent == nil || f.Agent.Absent() {
				return
			}
			r.Judged()
			if n, _ := rule.Read(r, "attachments not returned", f.Agent.NotReturned); n > 0 {
				r.Find("", "%d attachments of dead pods could not be ended", n).Fix("railctl gc")
			}
		},
	},
	{
		ID: "IPAM-CRED", Scope: rule.NodeScope, Severity: rule.Fail,
		Expects:     "The API server accepts the kubeconfig of the plugin whereabouts. This also applies to a kubeconfig that another installer wrote.",
		Consequence: "whereabouts cannot assign addresses on this node, so new pods stay in ContainerCreating. The addresses of pods that end are not freed until the kubeconfig works again.",
		Cure:        "If the installer of whereabouts wrote the kubeconfig, and it leads to the same pools as rail-agent's own, wait: rail-agent replaces it. Otherwise renew the kubeconfig, or set whereabouts.replaceFiles in the chart.",
		Check: func(f *fact.Facts, r *rule.Report) {
			if f.Agent == nil || f.Agent.Absent() {
				return
			}
			k, _ := rule.Read(r, "kubeconfig of whereabouts", f.Agent.Kubeconfig)
			if k.Path == "" {
				return // the agent does not maintain it
			}
			r.Judged()
			if k.Refused != "" {
				r.Find(k.Path, "%s", k.Refused)
			}
		},
	},
}
