// Package objects reads the facts that the API server has: of a node, its pods, and the networks and
// prefixes of the cluster.
package objects
