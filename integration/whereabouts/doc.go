// Package whereabouts compares our whereabouts plugin with the real one,
// v0.9.4, on one real API server: the answers and objects of each for the same
// input, concurrent writes of both to one pool, and the objects that are left
// after servers and processes have died. It has tests only; "make test" builds
// the binaries that they run.
//
// docs/reference/conformance-whereabouts.md is the table of differences. It is written by
// "go test ./integration/whereabouts -run Conformance -update", and the test
// fails if it is stale.
package whereabouts
