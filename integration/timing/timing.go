// Package timing judges how long something took in a test. It is imported by tests only.
//
// A goal is what a quiet machine keeps to. Tests run on busy and on emulated machines, where a
// goal as a limit fails by chance. So the time is logged beside its goal, and the test fails
// only where it is many times as long: there something waits that should not. Where waiting once
// and waiting for each of many are less far apart, a test counts the waits instead.
package timing

import (
	"testing"
	"time"
)

// Width is how many times its goal something may take.
const Width = 10

// Check logs how long something took, and its goal. It fails the test if that was more than
// [Width] times the goal. what is the subject of "took", for example "the DEL".
func Check(t testing.TB, what string, took, goal time.Duration) {
	t.Helper()
	took = took.Round(goal / 1000)
	t.Logf("%s took %v, goal %v", what, took, goal)
	if took > Width*goal {
		t.Errorf("%s took %v, which is more than %d times the goal, %v", what, took, Width, goal)
	}
}
