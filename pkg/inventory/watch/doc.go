// Package watch notices that the NICs of a node may have changed. The receiver reads the state
// itself: see package inventory.
//
//	watch.NICs(ctx, host, dirs, stateDirs, reporter, log, changed.Fire)
package watch
