// Package agent is the node's keeper: it ends the attachments whose pod netns
// is gone as soon as the kernel has brought their NICs home, watches that the
// plugins' binaries are still ours, has the journal of addresses replayed, and
// reports all that by its log, notices, metrics and a status.
//
// It keeps nothing that matters: what is to be done is in the ledger and in the
// journal, so it may be killed at any instant, run several times, or not at
// all. It ends attachments by pkg/attachment, under the lock that the plugins take, so
// it never disturbs an ADD or DEL.
//
// It knows the API server only as a [Teller] and a [Journal]. The packages below it
// are for agents in a cluster: events is a Teller, and metricsauth decides who may
// read the metrics.
package agent
