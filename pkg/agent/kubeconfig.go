package agent

import "strconv"

// Kubeconfig is what is known of the kubeconfig by which the plugin whereabouts reaches the API
// server.
type Kubeconfig struct {
	Path     string `json:"path"`
	Ours     bool   `json:"ours"`              // rail-agent wrote it, and renews its token
	Accepted bool   `json:"accepted"`          // by the server's last answer
	Refused  string `json:"refused,omitempty"` // why no plugin reaches the server by it
	Unasked  string `json:"unasked,omitempty"` // why nobody knows
}

// kubeconfig returns what is known of the plugin's kubeconfig, nil if the agent does not maintain
// it, or has not looked yet.
func (a *agent) kubeconfig() *Kubeconfig {
	if a.Kubeconfig == nil {
		return nil
	}
	if k := a.Kubeconfig(); k.Path != "" {
		return &k
	}
	return nil
}

// collectKubeconfig adds the metric of the plugin's kubeconfig, unless nobody knows whether the
// server accepts it.
func (a *agent) collectKubeconfig(e *exposition) {
	k := a.kubeconfig()
	if k == nil || !k.Accepted && k.Refused == "" {
		return
	}
	accepted := 1.0
	if k.Refused != "" {
		accepted = 0
	}
	e.add("rail_cni_kubeconfig_accepted", gauge, "Whether the API server accepts the kubeconfig of the plugin whereabouts.", accepted,
		labels{"path", k.Path, "ours", strconv.FormatBool(k.Ours)})
}
