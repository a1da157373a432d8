package credential

import (
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
)

// Component returns the keeper as a component of the agent. The agent is ready when the plugin can
// reach the server.
func (k *Keeper) Component() component.Component {
	return component.Component{Name: "credential", Reporter: k.reporter, Run: k.Run, Ready: k.Ready, Collect: k.collect, Status: k.status}
}

// status returns what is known about the plugin's kubeconfig. Before the first check it returns
// nothing.
func (k *Keeper) status() map[string]any {
	use := k.Use()
	if use.Path == "" {
		return nil
	}
	return map[string]any{"kubeconfig": local.Kubeconfig{
		Path: use.Path, Owned: use.Owned, Accepted: use.Accepted, Refused: text(use.Refused), Unasked: text(use.Unasked),
	}}
}

// text returns the text of an error. It returns "" if err is nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// collect sends the metric about the plugin's kubeconfig. If it is not known whether the server
// accepts the kubeconfig, collect sends nothing.
func (k *Keeper) collect(out component.Metrics) {
	use := k.Use()
	if use.Path == "" || !use.Accepted && use.Refused == nil {
		return
	}
	out.Gauge("rail_cni_kubeconfig_accepted", "Whether the API server accepts the kubeconfig of the plugin whereabouts.", component.Bool(use.Refused == nil),
		"path", use.Path, "owned", strconv.FormatBool(use.Owned))
}
