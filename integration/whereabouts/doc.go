// Package whereabouts holds our whereabouts plugin beside the real one, v0.9.4,
// on one real API server: what each answers and writes for the same input, how
// both write to one pool at once, and what is left after servers and processes
// have died. It has tests only; "make test" builds what they run.
//
// The table of what is equal and what is not is docs/conformance-whereabouts.md.
// It is written by "go test ./integration/whereabouts -run Conformance -update",
// and the test fails when it is stale.
package whereabouts
