package component

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/contain"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Reporter reports what a component has to tell people: it logs, and passes notices on. Its
// methods may be called concurrently.
type Reporter struct {
	component string
	log       *slog.Logger
	notify    func(Notice)

	mu     sync.Mutex
	open   map[string]string // the problems that were reported, by key
	panics uint64
}

// NewReporter returns the reporter of a component. notify passes a notice on and does not
// block; nil means that the log is enough.
func NewReporter(component string, log *slog.Logger, notify func(Notice)) *Reporter {
	return &Reporter{component: component, log: log, notify: notify, open: map[string]string{}}
}

// Report logs a notice, with more attributes in args, and passes it on.
func (r *Reporter) Report(n Notice, args ...any) {
	n.Write(r.log, args...)
	if r.notify != nil {
		r.notify(n)
	}
}

// Once is Report of the problem that key names, unless it was reported with this message and is not
// over.
func (r *Reporter) Once(key string, n Notice, args ...any) { r.once(key, n.Message, n, args) }

// once is Once, and compares text in place of the message.
func (r *Reporter) once(key, text string, n Notice, args []any) {
	text = n.Reason + " " + text
	r.mu.Lock()
	again := r.open[key] == text
	r.open[key] = text
	r.mu.Unlock()
	if !again {
		r.Report(n, args...)
	}
}

// Over ends the problem that key names, so that Once reports it when it occurs again. It reports
// whether there was one.
func (r *Reporter) Over(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.open[key]
	delete(r.open, key)
	return was
}

// OnceErr is Once of an error whose text is added to the message, or Over if err is nil. An error that
// differs from the last one only in its digits is the same: in a port, a time, a number of tries.
func (r *Reporter) OnceErr(key string, err error, n Notice, args ...any) {
	if err == nil {
		r.Over(key)
		return
	}
	text := n.Message + withoutDigits(err.Error())
	n.Message += err.Error()
	r.once(key, text, n, args)
}

// Contain calls f and returns its error. If f panics, it counts that, logs the stack, reports
// it, and returns a [*contain.PanicError]: the other components go on.
func (r *Reporter) Contain(f func() error) error {
	var failed error
	err := contain.Panics(func() error { failed = f(); return nil })
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		r.panicked(p)
		return err
	}
	return failed // it may have a panic that was contained, and counted, further down
}

// Value is Contain for a function with a result. After a panic the result is the zero value.
func Value[T any](r *Reporter, f func() (T, error)) (result T, err error) {
	err = r.Contain(func() (err error) { result, err = f(); return err })
	return result, err
}

// panicked counts and reports a panic.
func (r *Reporter) panicked(p *contain.PanicError) {
	r.mu.Lock()
	r.panics++
	r.mu.Unlock()
	r.log.Error("component has panicked", "component", r.component, "panic", p.Value, "stack", string(p.Stack))
	r.Once("panic", Notice{
		Reason: "ComponentPanicked", Summary: "component has panicked, and continues", Warning: true,
		Message: fmt.Sprintf("%s of rail-agent panicked, and goes on: %v. This is a defect: please report it with the stack, which the log has",
			r.component, p.Value),
	})
}

// Panics returns how often the component panicked.
func (r *Reporter) Panics() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.panics
}

// withoutDigits returns a text without digits, which change between tries: times, ports,
// process IDs.
func withoutDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// goodRun is how long a run must last for the pause after it to be the first one again.
const goodRun = time.Minute

// Run calls f, and after each panic calls it again, until it returns or ctx ends.
func (r *Reporter) Run(ctx context.Context, f func(ctx context.Context)) {
	pause := Backoff{First: firstPanicPause, Last: lastPanicPause}
	for ctx.Err() == nil {
		began := time.Now()
		if r.Contain(func() error { f(ctx); return nil }) == nil {
			return
		}
		if time.Since(began) > goodRun {
			pause.Reset()
		}
		_ = wait.For(ctx, pause.Next())
	}
}
