// Package agent is the node's keeper: it ends the attachments whose pod netns
// is gone as soon as the kernel has brought their NICs home, watches that the
// plugins' binaries are still ours, has what waits in the journal of addresses
// replayed, and tells of all that: logs, notices, metrics, a status.
//
// It keeps nothing that matters: what is to be done is in the ledger and in the
// journal, so it may be killed at any instant, run several times, or not at
// all. What it does with an attachment it does by pkg/attachment, under the lock that the
// plugins take, so it never gets in the way of an ADD or DEL.
//
// It knows the API server only as a [Teller] and a [Journal]. The packages below it
// are for agents in a cluster: events is such a Teller, metricsauth decides who may
// read the metrics.
package agent
