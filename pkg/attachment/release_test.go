package attachment

import (
	"math"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func TestReturnIsAwaitedThreeTimesAsLongAsTheMoveTook(t *testing.T) {
	for movedMS, want := range map[int64]time.Duration{
		0: returnWait, 1: returnWait, 1500: returnWait, 4000: 12 * time.Second, 60_000: maxReturn,
		-1: returnWait, math.MinInt64: returnWait,
	} {
		if got := waitFor(&ledger.Record{MovedMS: movedMS}); got != want {
			t.Errorf("after a move of %d ms: %v, want %v", movedMS, got, want)
		}
	}
	if got := waitFor(&ledger.Record{MovedMS: math.MaxInt64}); got < returnWait || got > maxReturn {
		t.Errorf("after a move of the longest time: %v", got)
	}
}
