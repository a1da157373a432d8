package component

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rail-cni/rail-cni/pkg/contain"
)

func newTestReporter() (*Reporter, *[]Notice) {
	var told []Notice
	return NewReporter("test", slog.New(slog.DiscardHandler), func(n Notice) { told = append(told, n) }), &told
}

func TestProblemIsReportedOnceAndAgainWhenItReturns(t *testing.T) {
	r, told := newTestReporter()
	refused := Notice{Reason: "Away", Message: "server: ", Warning: true}
	for _, step := range []struct {
		err  error
		told int
	}{
		{errors.New("dial 127.0.0.1:4312: refused"), 1},
		{errors.New("dial 127.0.0.1:55: refused"), 1},
		{errors.New("dial 127.0.0.1:55: no route"), 2},
		{nil, 2},
		{errors.New("dial 127.0.0.1:4312: no route"), 3},
	} {
		r.OnceErr("server", step.err, refused)
		if len(*told) != step.told {
			t.Errorf("%v: %d reports, want %d", step.err, len(*told), step.told)
		}
	}
	r.Once("another", Notice{Reason: "Away", Message: "server: dial 127.0.0.1:4312: no route"})
	if len(*told) != 4 {
		t.Error("the same text of another key is not reported")
	}
	if !r.Over("another") || r.Over("another") || r.Over("never") {
		t.Error("Over does not tell what was reported")
	}
}

func TestPanicIsContainedAndCounted(t *testing.T) {
	r, told := newTestReporter()
	for range 2 {
		n, err := Value(r, func() (int, error) { panic("a defect") })
		var p *contain.PanicError
		if !errors.As(err, &p) || p.Value != "a defect" || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
	}
	if r.Panics() != 2 || len(*told) != 1 || (*told)[0].Reason != "ComponentPanicked" {
		t.Errorf("%d panics, %v", r.Panics(), *told)
	}
	if err := r.Contain(func() error { return r.Contain(func() error { panic("a defect") }) }); err == nil || r.Panics() != 3 {
		t.Errorf("%v: a panic that is contained twice counts %d times", err, r.Panics()-2)
	}
	if n, err := Value(r, func() (int, error) { return 7, context.Canceled }); n != 7 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v", n, err)
	}
}

// runLoop runs a loop in a bubble of synctest, and returns the times of its calls since the start.
func runLoop(t *testing.T, l *Loop, until time.Duration, at map[time.Duration]func()) (calls []time.Duration) {
	t.Helper()
	l.Reporter, _ = newTestReporter()
	began := time.Now()
	do := l.Do
	l.Do = func(ctx context.Context) time.Time {
		calls = append(calls, time.Since(began))
		return do(ctx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), until)
	defer cancel()
	for when, f := range at {
		time.AfterFunc(when, f)
	}
	l.Run(ctx)
	return calls
}

func wantCalls(t *testing.T, have []time.Duration, want ...time.Duration) {
	t.Helper()
	if len(have) != len(want) {
		t.Fatalf("calls at %v, want %v", have, want)
	}
	for i := range want {
		if have[i] != want[i] {
			t.Errorf("calls at %v, want %v", have, want)
		}
	}
}

const ms = time.Millisecond

func TestLoopRunsWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Do: func(context.Context) time.Time { return time.Now().Add(100 * ms) }}
		wantCalls(t, runLoop(t, l, 250*ms, nil), 0, 100*ms, 200*ms)
	})
}

// TestTriggerSettles: changes that come shortly after each other lead to one call. Changes during a
// call lead to one further call.
func TestTriggerSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trigger, calls := NewTrigger(), 0
		l := &Loop{Trigger: trigger, Settle: 50 * ms, Do: func(context.Context) time.Time {
			if calls++; calls == 2 {
				trigger.Fire()
			}
			return time.Now().Add(time.Hour)
		}}
		fire := map[time.Duration]func(){100 * ms: trigger.Fire, 120 * ms: trigger.Fire, 149 * ms: trigger.Fire}
		wantCalls(t, runLoop(t, l, time.Second, fire), 0, 150*ms, 200*ms)
	})
}

// TestLoopRestsAfterLongWork: after work that takes long, the loop rests. The rest is in proportion
// to the work, but limited, and only Now ends it early.
func TestLoopRestsAfterLongWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trigger, now := NewTrigger(), NewTrigger()
		l := &Loop{Trigger: trigger, Now: now, MaxRest: 300 * ms, Do: func(context.Context) time.Time {
			time.Sleep(50 * ms)
			return time.Now().Add(time.Hour)
		}}
		fire := map[time.Duration]func(){
			60 * ms:  trigger.Fire, // after 50 ms of work the rest is 200 ms
			310 * ms: now.Fire,
			370 * ms: trigger.Fire,
		}
		wantCalls(t, runLoop(t, l, 2*time.Second, fire), 0, 250*ms, 310*ms, 560*ms)
	})
	synctest.Test(t, func(t *testing.T) {
		trigger := NewTrigger()
		l := &Loop{Trigger: trigger, MaxRest: 300 * ms, Do: func(context.Context) time.Time {
			time.Sleep(100 * ms)
			return time.Now().Add(time.Hour)
		}}
		wantCalls(t, runLoop(t, l, 600*ms, map[time.Duration]func(){150 * ms: trigger.Fire}), 0, 400*ms)
	})
}

func TestLoopGoesOnAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := &Loop{Do: func(context.Context) time.Time {
			if calls++; calls <= 2 {
				panic("a defect")
			}
			return time.Now().Add(time.Hour)
		}}
		wantCalls(t, runLoop(t, l, time.Minute, nil), 0, time.Second, 3*time.Second)
		if l.Reporter.Panics() != 2 {
			t.Errorf("%d panics", l.Reporter.Panics())
		}
	})
}

func TestPausesGrowUntilTheReset(t *testing.T) {
	b := Backoff{First: time.Second, Last: 5 * time.Second}
	for _, want := range []time.Duration{1, 2, 4, 5, 5} {
		if have := b.Next(); have != want*time.Second {
			t.Errorf("%v, want %d s", have, want)
		}
	}
	b.Reset()
	if have := b.Next(); have != time.Second {
		t.Errorf("after the reset %v", have)
	}
}
