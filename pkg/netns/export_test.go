package netns

import (
	"testing"
)

// For tests of the ways to a namespace that Find tries only if a quicker way fails.
var (
	Scan         = scan
	ScanUntil    = scanUntil
	OpenByHandle = openByHandle
	MountsOf     = mountsOf
)

// UseHandles makes Exists use file handles of namespaces first, or never. The choice ends with t.
func UseHandles(t testing.TB, yes bool) {
	before := noHandles.Swap(!yes)
	t.Cleanup(func() { noHandles.Store(before) })
}
