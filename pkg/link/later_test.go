package link_test

import (
	"testing"
	"time"
)

// later calls do after a while, and before the test closes its namespaces.
func later(t *testing.T, after time.Duration, do func()) {
	over := make(chan struct{})
	time.AfterFunc(after, func() {
		defer close(over)
		do()
	})
	t.Cleanup(func() { <-over })
}
