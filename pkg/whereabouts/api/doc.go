// Package api reads and writes whereabouts' custom resources: IPPools,
// OverlappingRangeIPReservations and NodeSlicePools. It contains what the address store and
// the reconciler both need: the objects, patches that the server refuses if an entry has
// changed, and the kinds of errors.
//
// An address is held by an entry in the IPPool of its pool. Unless
// enable_overlapping_ranges is false, it is also held by an OverlappingRangeIPReservation,
// which keeps the address from the other pools of the same address space.
//
// To read a pool in the client's namespace:
//
//	pool, err := api.ReadPool(ctx, client, "10.0.0.0-24")
package api
