package component

import (
	"context"
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Trigger wakes a [Loop]. Its zero value cannot be used: see [NewTrigger].
type Trigger struct{ c chan struct{} }

// NewTrigger returns a trigger that has not fired.
func NewTrigger() *Trigger { return &Trigger{make(chan struct{}, 1)} }

// Fire wakes the loop. It does not block. Several calls before the loop wakes count as one.
func (t *Trigger) Fire() {
	select {
	case t.c <- struct{}{}:
	default: // the loop is due already
	}
}

// Wait waits for d, and reports whether the trigger fired before d or ctx ended.
func (t *Trigger) Wait(ctx context.Context, d time.Duration) (fired bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.c:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// drain makes the trigger one that has not fired.
func (t *Trigger) drain() {
	if t == nil {
		return
	}
	select {
	case <-t.c:
	default:
	}
}

// Loop calls a function again and again. A panic of the function is contained, and the function
// is called again after a pause.
type Loop struct {
	Reporter *Reporter

	// Do does the work, and returns when it is due again without a trigger: in the future, unless
	// there is a MinRest. It reads the state itself: a trigger means only that something has
	// changed.
	Do func(ctx context.Context) (next time.Time)

	// Trigger makes Do due after Settle, because changes come together. Now makes it due at
	// once. Both may be nil.
	Trigger, Now *Trigger
	Settle       time.Duration

	// The rest after Do is in proportion to how long Do took (wait.Rest), but at least MinRest
	// and at most MaxRest. Only Now ends it. Without MaxRest it is MinRest.
	MinRest, MaxRest time.Duration
}

// The pauses after panics in a row.
const (
	firstPanicPause = time.Second
	lastPanicPause  = time.Minute
)

// Run runs the loop until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	afterPanic := Backoff{First: firstPanicPause, Last: lastPanicPause}
	for ctx.Err() == nil {
		l.Trigger.drain()
		l.Now.drain()
		began := time.Now()
		var next time.Time
		err := l.Reporter.Contain(func() error { next = l.Do(ctx); return nil })
		ended := time.Now()
		if err != nil {
			_ = wait.For(ctx, afterPanic.Next())
			continue
		}
		afterPanic.Reset()
		rest := ended.Add(max(l.MinRest, min(wait.Rest(ended.Sub(began)), l.MaxRest)))
		l.wait(ctx, next, rest)
	}
}

// wait waits until the next call of Do, which is not before rest unless Now fires.
func (l *Loop) wait(ctx context.Context, next, rest time.Time) {
	var changed, now <-chan struct{}
	if l.Trigger != nil {
		changed = l.Trigger.c
	}
	if l.Now != nil {
		now = l.Now.c
	}
	timer := time.NewTimer(time.Until(later(next, rest)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-now:
			return
		case <-changed:
			changed = nil // it settles
			due := later(time.Now().Add(l.Settle), rest)
			timer.Reset(time.Until(due))
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Backoff is a pause that doubles from First to Last.
type Backoff struct {
	First, Last time.Duration

	pause time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Last)
	return b.pause
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.pause = 0 }
