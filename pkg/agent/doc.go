// Package agent runs the components of rail-agent concurrently, and serves their health, metrics
// and status. It does not know any component itself: cmd/rail-agent makes the list of components.
//
// An agent has no state of its own. So it may be killed at any moment, and several agents or no
// agent may run.
//
//	a := agent.New(agent.Options{Socket: "/run/rail-cni/agent.sock", Log: log})
//	a.Add(nics.Component(), plugins.Component())
//	err := a.Run(ctx)
//
// There are four packages below this one. The package local asks the agent of this node. The
// package remote asks the agents of a cluster. The package events sends notices to the API server.
// The package metricsauth decides who may read the metrics.
package agent
