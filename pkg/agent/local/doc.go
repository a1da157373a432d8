// Package local asks the agent of this node, by its socket.
//
//	err := local.ProbeReady(ctx, local.SocketIn("/run/rail-cni"))
package local
