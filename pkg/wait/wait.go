package wait

import (
	"context"
	"errors"
	"time"
)

// firstPause is the pause after the first call of [Until]. Most waits for the
// kernel end within it.
const firstPause = time.Millisecond

// Until calls done until it returns true or an error, or ctx ends. The error is
// that of done, or of ctx: [Ended] distinguishes them.
//
// It calls done at least once, even if ctx has ended: that is how a caller
// checks without waiting. The pauses between the calls begin at a millisecond
// and double up to every.
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

// Ended reports whether err is of an [Until] with ctx that was not done when
// ctx ended. The error of done may wrap [context.DeadlineExceeded] as well, of
// a wait of its own.
func Ended(ctx context.Context, err error) bool {
	var e *ended
	return errors.As(err, &e) && e.ctx == ctx
}

// Rest returns how long to rest after work that took so long. Work that is repeated with these rests
// takes at most a fifth of the time.
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
