// Package agent runs the components of rail-agent concurrently, and serves their health,
// metrics and status. It knows none of them: cmd/rail-agent makes the list.
//
// It has no state of its own, so it may be killed at any instant, run several times, or not at
// all.
//
//	a := agent.New(agent.Options{Socket: "/run/rail-cni/agent.sock", Log: log})
//	a.Add(nics.Component(), plugins.Component())
//	err := a.Run(ctx)
//
// The packages below it: local asks the agent of this node, remote the agents of a
// cluster, events sends notices to the API server, and metricsauth decides who may read the
// metrics.
package agent
