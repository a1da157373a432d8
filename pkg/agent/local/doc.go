// Package local asks the agent of this node, by its socket: whether it is ready, for its status,
// and for the facts of the node.
//
//	err := local.ProbeReady(ctx, local.SocketIn("/run/rail-cni"))
package local
