// Package report describes the address pools of a cluster for users. [Pools] returns which
// networks take addresses from a pool, and which pods hold the addresses. [Explain] returns
// which address a network assigns next. [Check] returns the errors in the ranges of the
// networks. The package only reads, and runs anywhere the API server is reachable.
//
// A pool that is divided into blocks is described with its blocks. Which addresses of a
// block are used is known only as far as the node's rail-agent has published it.
//
// A network is a configuration that uses whereabouts, from a NetworkAttachmentDefinition or
// a file. Objects that cannot be read are returned as errors, together with the results
// about all other objects.
//
// To list the pools:
//
//	pools, errs := report.Pools(ctx, client)
package report
