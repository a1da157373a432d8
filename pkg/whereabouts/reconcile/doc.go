// Package reconcile frees the addresses of pods that are gone. It also completes pairs of
// entry and reservation if one half is missing. It works on the cluster's objects, and not
// on the node's store. It frees the addresses in a node's journal through a [Journal].
//
// To reconcile once:
//
//	found, err := reconcile.New(reconcile.Options{Client: client, Grace: reconcile.DefaultGrace}).Once(ctx)
package reconcile
