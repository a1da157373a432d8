// Package plan turns a network's configuration into what the address store needs: the
// pools of its ranges, and the claims that an ADD makes on them. The plugin passes
// these claims to the store; railctl explains and checks them.
//
// A network may give each node a slice of its range (node_slice_size). The
// pools are then those of the node's [Slice].
package plan
