// Package collect reads the facts of a node for pkg/doctor.
//
// [Node] asks all sources concurrently: files of the kernel and of daemons, netlink in the
// host's and the pods' network namespaces, the ledger, rail-agent's socket and, if it has a
// client, the API server. Each source has a bounded time, so if one hangs, only its facts are
// missing. A fact that cannot be read has the reason instead of a value: a directory that
// cannot be read is not reported as empty, and a list that only root can read in full is an
// error for other users.
//
// It changes nothing on the node. pkg/doctor judges the facts.
package collect
