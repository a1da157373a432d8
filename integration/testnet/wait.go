package testnet

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

// leastPause is the least time between two calls of [Within].
const leastPause = 2 * time.Millisecond

// Within calls done until it returns true, and reports whether it did within the limit. It calls done
// once more after that, in case the machine was suspended. It rests four times as long as a call
// takes: the CPUs are for what it waits for.
func Within(limit time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(limit); ; {
		began := time.Now()
		if done() {
			return true
		}
		if began.After(deadline) {
			return false
		}
		time.Sleep(max(leastPause, wait.Rest(time.Since(began))))
	}
}
