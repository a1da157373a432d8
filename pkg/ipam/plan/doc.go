// Package plan derives the address store's input from a network's configuration: the pools
// of its ranges, and the claims of an ADD. The plugin passes these claims to the store.
// railctl explains and checks them.
//
// A network may assign each node a slice of its range (node_slice_size). The pools are then
// the pools of the node's [Slice].
//
// To claim the addresses of an ADD:
//
//	claims, err := plan.Claims(conf, slice)
package plan
