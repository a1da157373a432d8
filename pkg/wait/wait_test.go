package wait

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestUntilAsksAtLeastOnce(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	asked := 0
	done := func() (bool, error) { asked++; return true, nil }
	if err := Until(over, time.Hour, done); err != nil || asked != 1 {
		t.Errorf("asked %d times, error %v", asked, err)
	}
	if err := Until(over, time.Hour, func() (bool, error) { return false, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("not done, and the context over: %v", err)
	}
}

func TestUntilReturnsTheErrorOfDone(t *testing.T) {
	broken := errors.New("broken")
	if err := Until(t.Context(), time.Hour, func() (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestEndedTellsTheTimeOfAWaitFromThatOfWhatItWaitsFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := Until(ctx, time.Millisecond, func() (bool, error) { return false, nil })
	if !Ended(ctx, fmt.Errorf("it did not come: %w", err)) {
		t.Errorf("not done, and the context over: %v", err)
	}
	if Ended(t.Context(), err) || Ended(ctx, nil) {
		t.Error("it is of another context, or there is no error")
	}
	// For example of a lock that another process holds.
	inner := func() (bool, error) { <-ctx.Done(); return false, fmt.Errorf("busy: %w", ctx.Err()) }
	if err := Until(ctx, time.Millisecond, inner); err == nil || Ended(ctx, err) {
		t.Errorf("done failed: %v", err)
	}
}

func TestUntilSlowsDown(t *testing.T) {
	const every = 16 * time.Millisecond
	var calls []time.Time
	err := Until(t.Context(), every, func() (bool, error) {
		calls = append(calls, time.Now())
		return len(calls) == 8, nil
	})
	if err != nil || len(calls) != 8 {
		t.Fatalf("%d calls, error %v", len(calls), err)
	}
	// A busy machine makes pauses longer, never shorter.
	for i, least := range []time.Duration{1, 2, 4, 8, 16, 16, 16} {
		if pause := calls[i+1].Sub(calls[i]); pause < least*time.Millisecond {
			t.Errorf("pause %d was %v, want at least %d ms", i, pause, least)
		}
	}
}

func TestWaitsEndWithTheirContext(t *testing.T) {
	for name, wait := range map[string]func(context.Context) error{
		"For": func(ctx context.Context) error { return For(ctx, time.Hour) },
		"Until": func(ctx context.Context) error {
			return Until(ctx, time.Hour, func() (bool, error) { return false, nil })
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: error %v", name, err)
		}
		cancel()
	}
}

func TestForWaits(t *testing.T) {
	began := time.Now()
	if err := For(t.Context(), 20*time.Millisecond); err != nil || time.Since(began) < 20*time.Millisecond {
		t.Errorf("error %v after %v", err, time.Since(began))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := For(over, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("no time to wait, and the context over: %v", err)
	}
}
