// Package api reads and writes whereabouts' custom resources: IPPools,
// OverlappingRangeIPReservations and NodeSlicePools. It has the common ground
// of the address store and the reconciler: the objects, patches that the server
// refuses if an entry has changed, and the kinds of errors.
//
// Two objects hold an address: an entry in its IPPool, and, unless
// enable_overlapping_ranges is false, an OverlappingRangeIPReservation that
// keeps it from the other pools of its address space.
//
// To read a pool of client's namespace:
//
//	pool, err := api.ReadPool(ctx, client, "10.0.0.0-24")
package api
