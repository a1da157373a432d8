// Package api reads and writes whereabouts' custom resources: IPPools,
// OverlappingRangeIPReservations and NodeSlicePools. It has what the address store and
// the reconciler both need: the objects, patches that the server refuses if an entry
// has changed, and the kinds of errors.
//
// An address is held by two objects: an entry in its IPPool, and, unless
// enable_overlapping_ranges is false, an OverlappingRangeIPReservation that keeps it
// from the other pools of its address space.
package api
