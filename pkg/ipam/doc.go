// Package ipam chooses addresses. It computes the addresses of a range, the lowest free
// address, and the name of the pool that an address belongs to. It does no input or output.
// The stores that remember the assigned addresses implement [Store], for example
// ipam/local.
//
// Invariants:
//
//   - A range and an exclude list mean the same as in whereabouts, and the lowest free
//     address is chosen. The differential tests in integration/peers/whereabouts verify it.
//     There is one divergence: whereabouts treats the gateway like any other address, but
//     this package does not assign the gateway unless the configuration allows it.
//   - The cost of a choice does not grow with the number of assigned addresses: a taken
//     address is a bit in a [Page] of 65536 addresses, and an excluded block is skipped in
//     one step.
//
// To choose an address that is not taken:
//
//	r, err := ipam.NewRange(ipam.RangeSpec{Prefix: prefix})
//	…
//	addr, err := ipam.Choose(r, &taken)
package ipam
