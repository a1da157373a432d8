// Package wait waits: for a time, or for something to become true. Both end with
// their context.
//
// k8s.io/apimachinery has a package of this name. The plugins do not use it: it
// brings net/http and klog, and host-device grows from 5.0 to 6.7 MB.
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
// that of done, or of ctx: [Ended] tells which.
//
// It calls done at least once, whatever ctx says: a caller that must not wait has
// a context that has ended. The pauses between the calls begin at a millisecond
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

// ended is the error of Until when its ctx ends.
type ended struct {
	ctx context.Context
	error
}

func (e *ended) Unwrap() error { return e.error }

// Ended reports whether err is of an [Until] with ctx that was not done when ctx
// ended. What done returns may wrap [context.DeadlineExceeded] as well, of a wait
// of its own.
func Ended(ctx context.Context, err error) bool {
	var e *ended
	return errors.As(err, &e) && e.ctx == ctx
}

// For waits for d. If ctx ends before, it returns the error of ctx.
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
