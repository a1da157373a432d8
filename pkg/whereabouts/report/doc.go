// Package report describes the address pools of a cluster for users: which
// networks take addresses from which pool and which pods hold them ([Pools]),
// which address a network assigns next ([Explain]), and the errors of the
// ranges ([Check]). It only reads, and runs anywhere the API server is
// reachable.
//
// A pool that is divided into blocks is described with its blocks. Which of their
// addresses are used is as the nodes' rail-agents have published it.
//
// A network is a configuration that uses whereabouts, from a
// NetworkAttachmentDefinition or a file. Objects that cannot be read are
// returned as errors together with the results; the rest is still shown.
//
// To list the pools:
//
//	pools, errs := report.Pools(ctx, client)
package report
