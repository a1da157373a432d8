// Package agent is the node's keeper: it ends the attachments whose pod netns
// is gone as soon as the kernel has returned their NICs to the host, checks
// that the installed plugins are ours, replays the journal of addresses, and
// reports all of it by its log, notices, metrics and a status.
//
// It has no state of its own: the ledger and the journal contain the work, so
// it may be killed at any instant, run several times, or not at all. It ends
// attachments with pkg/attachment, under the lock that the plugins take, so it
// never disturbs an ADD or DEL.
//
// To run an agent on a node:
//
//	err := agent.Run(ctx, agent.Options{StateDirs: []string{"/run/rail-cni"}, Log: log})
//
// It knows the API server only as a [Teller] and a [Journal]. The packages below it
// are for agents in a cluster: events is a Teller, and metricsauth decides who may
// read the metrics.
package agent
