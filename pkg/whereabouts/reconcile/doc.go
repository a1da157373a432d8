// Package reconcile frees the addresses of pods that are gone, and completes
// pairs of entry and reservation of which one half is missing. It uses the
// cluster's objects and not the node's store: it frees the addresses in a
// node's journal through a [Journal].
//
// To reconcile once:
//
//	found, err := reconcile.New(reconcile.Options{Client: client, Grace: reconcile.DefaultGrace}).Once(ctx)
package reconcile
