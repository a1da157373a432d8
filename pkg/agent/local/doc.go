// Package local sends requests to the agent of this node through its socket. It can ask whether the
// agent is ready, for the agent's status, and for the facts of the node.
//
//	err := local.ProbeReady(ctx, local.SocketIn("/run/rail-cni"))
package local
