// Package collect reads the facts of a node, or of all nodes of a cluster, for pkg/doctor.
//
// [Node] asks all sources concurrently. The sources are files of the kernel and of daemons, netlink
// in the network namespaces of the host and of pods, the ledger, and rail-agent's socket. If there
// is a client, the API server is a source as well. Each source has a time limit, so if a source
// hangs, only its facts are missing. A fact that cannot be read has the reason instead of a value.
// For example, a directory that cannot be read is not reported as empty, and a list that only root
// can read completely is an error for other users.
//
// The packages below read one kind of source each; this one decides what is read when, and for how
// long. [Reader] does it in a process of its own. [Cluster] asks the agents of all nodes.
//
// The package changes nothing on the node. The package pkg/doctor judges the facts.
package collect
