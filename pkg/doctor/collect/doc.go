// Package collect reads the facts of a node for pkg/doctor.
//
// [Node] asks all sources side by side: files of the kernel and of daemons, netlink in the
// host's and the pods' network namespaces, the ledger, rail-agent's socket and, if it has a
// client, the API server. Each source has a bounded time, so one that hangs costs its own
// facts only. A fact that cannot be read has the reason instead of a value: an unreadable
// directory is not an empty one, and a list that only root sees in full is no fact for others.
//
// It changes nothing on the node. Judging the facts is the job of pkg/doctor.
package collect
