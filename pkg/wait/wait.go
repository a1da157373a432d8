package wait

import (
	"context"
	"errors"
	"time"
)

// firstPause is the pause after the first call of done in [Until]. Most waits for the
// kernel end within this time.
const firstPause = time.Millisecond

// Until calls done until done returns true or an error, or until ctx ends. It returns the
// error of done, or an error that wraps that of ctx. [Ended] distinguishes the two.
//
// Until calls done at least once, even if ctx has ended, so that a caller can check without
// waiting. The pauses between the calls begin at a millisecond and double up to every.
func Until(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for pause := min(firstPause, every); ; pause = min(2*pause, every) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := For(ctx, pause); err != nil {
			return &ended{ctx, err}
		}
	}
}

// ended is the error of Until if its ctx ends.
type ended struct {
	ctx context.Context
	error
}

func (e *ended) Unwrap() error { return e.error }

// Ended reports whether err is the error of an [Until] that was still waiting when its ctx
// ended. To compare err with [context.DeadlineExceeded] does not suffice, because an error
// of done may wrap that, too.
func Ended(ctx context.Context, err error) bool {
	var e *ended
	return errors.As(err, &e) && e.ctx == ctx
}

// Rest returns how long to rest after work that took the time took. Work that is repeated
// with these rests takes at most a fifth of the time.
func Rest(took time.Duration) time.Duration { return 4 * took }

// For waits for d. If ctx ends first, it returns the error of ctx.
func For(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
