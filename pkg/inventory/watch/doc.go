// Package watch notices that the NICs of a node may have changed. It does not read the new state.
// The caller does that with package inventory.
//
//	watch.NICs(ctx, host, dirs, stateDirs, reporter, log, changed.Fire)
package watch
