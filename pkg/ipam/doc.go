// Package ipam chooses addresses: which ones a range has, which of them is
// free, and what a pool of them is called. It is pure; the stores that
// remember what was handed out are below it (ipam/local) and implement
// [Store].
//
// What it promises:
//
//   - A range and an exclude list mean what they mean to whereabouts, and the
//     lowest free address is chosen. The differential tests in
//     integration/peers/whereabouts hold it to that. The reasoned divergence:
//     the gateway is an address like any other to whereabouts, and never
//     handed out here unless the configuration allows it.
//   - The cost of a choice does not grow with the number of addresses handed
//     out: what is taken is kept as bits, 65536 to a [Page], and an excluded
//     block is passed in one step.
//
// The package imports cnierr of the project and nothing else of it. It knows
// nothing of links, files or Kubernetes.
package ipam
