package component

import (
	"context"
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Trigger wakes a [Loop]. The zero value cannot be used. [NewTrigger] makes a trigger.
type Trigger struct{ c chan struct{} }

// NewTrigger returns a trigger that has not fired.
func NewTrigger() *Trigger { return &Trigger{make(chan struct{}, 1)} }

// Fire wakes the loop. It does not block. Several calls before the loop wakes count as one.
func (t *Trigger) Fire() {
	select {
	case t.c <- struct{}{}:
	default: // the trigger has already fired
	}
}

// Wait waits until t fires, d has passed or ctx ends. It reports whether t fired first.
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

// drain resets the trigger, so that it counts as not fired.
func (t *Trigger) drain() {
	if t == nil {
		return
	}
	select {
	case <-t.c:
	default:
	}
}

// Loop calls a function again and again. If the function panics, the panic is contained, and the
// function is called again after a pause.
type Loop struct {
	Reporter *Reporter

	// Do does the work. It returns the time at which it must be called again even if no trigger
	// fires. If MinRest is 0, this time must be in the future. Do must read the state itself,
	// because a trigger only means that something has changed.
	Do func(ctx context.Context) (next time.Time)

	// Trigger makes Do due after Settle, because often several changes come shortly after each
	// other. Now makes Do due at once. Both triggers may be nil.
	Trigger, Now *Trigger
	Settle       time.Duration

	// After Do, the loop rests. The rest is in proportion to the time that Do took (wait.Rest), but
	// at least MinRest and at most MaxRest. If MaxRest is 0, the rest is MinRest. Only Now ends the
	// rest early.
	MinRest, MaxRest time.Duration
}

// These are the first and the longest pause after consecutive panics.
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

// wait waits until Do must be called again. It does not return before the time rest, except if Now
// fires or ctx ends.
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
			changed = nil // Do is already due after Settle, so further changes do not matter
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

// Backoff is a pause that doubles each time, from First to Last.
type Backoff struct {
	First, Last time.Duration

	pause time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Last)
	return b.pause
}

// Reset makes the next pause First again.
func (b *Backoff) Reset() { b.pause = 0 }
