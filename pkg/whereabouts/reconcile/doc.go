// Package reconcile frees the addresses of pods that are gone, and completes pairs of
// entry and reservation of which one half is missing. It knows the cluster's objects
// and not the node's store: what DELs left on a node it frees through a [Journal].
package reconcile
