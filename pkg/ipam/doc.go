// Package ipam chooses addresses: it computes the addresses of a range, the
// lowest free one, and the name of their pool. It does no input or output;
// stores that remember the assigned addresses implement [Store], for example
// ipam/local.
//
// Invariants:
//
//   - A range and an exclude list mean the same as in whereabouts, and the
//     lowest free address is chosen. The differential tests in
//     integration/peers/whereabouts verify it. The one divergence: whereabouts
//     treats the gateway like any other address; this package does not assign
//     it unless the configuration allows it.
//   - The cost of a choice does not grow with the number of assigned addresses:
//     taken addresses are bits, 65536 in a [Page], and an excluded block is
//     skipped in one step.
//
// To choose an address that is not taken:
//
//	r, err := ipam.NewRange(ipam.RangeSpec{Prefix: prefix})
//	…
//	addr, err := ipam.Choose(r, &taken)
package ipam
