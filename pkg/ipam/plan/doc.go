// Package plan says what a network's configuration means for the address store:
// the pools that its ranges are, and the claims that an ADD makes on them. The
// plugin asks the store for these claims; railctl explains and checks them.
//
// A network may give each node a slice of its range (node_slice_size). The
// pools are then those of the node's [Slice].
package plan
