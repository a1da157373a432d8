// Package cluster has the rules that compare the nodes of a cluster, and those about the addresses of
// all its pools.
package cluster
