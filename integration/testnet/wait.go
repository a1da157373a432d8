package testnet

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

// The pauses between two calls of done in [Within] double from minPause to callPause. After a slow
// call they are longer, up to maxPause.
const (
	minPause  = 2 * time.Millisecond
	callPause = 50 * time.Millisecond
	maxPause  = 500 * time.Millisecond
)

// Within calls done until it returns true or the limit has passed, and reports whether it returned
// true. It makes one more call after the limit, in case the machine was suspended. It pauses four
// times as long as the call took, so that what it waits for gets the CPUs.
func Within(limit time.Duration, done func() bool) bool {
	deadline := time.Now().Add(limit)
	for pause := minPause; ; pause = min(2*pause, callPause) {
		began := time.Now()
		if done() {
			return true
		}
		if began.After(deadline) {
			return false
		}
		rest := min(wait.Rest(time.Since(began)), maxPause, time.Until(deadline)+minPause)
		time.Sleep(max(pause, rest))
	}
}
