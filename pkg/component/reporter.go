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

// Reporter reports the notices of a component to people: it logs them and passes them on. Its
// methods may be called concurrently.
type Reporter struct {
	component string
	log       *slog.Logger
	notify    func(Notice)

	mu     sync.Mutex
	open   map[string]string // the problems that were reported, by key
	panics uint64
}

// NewReporter returns the reporter of a component. notify is called with each notice and must not
// block. If it is nil, notices are only logged.
func NewReporter(component string, log *slog.Logger, notify func(Notice)) *Reporter {
	return &Reporter{component: component, log: log, notify: notify, open: map[string]string{}}
}

// Report logs a notice and passes it on. args are further attributes for the log.
func (r *Reporter) Report(n Notice, args ...any) {
	n.Write(r.log, args...)
	if r.notify != nil {
		r.notify(n)
	}
}

// Once reports the problem that key names. If the problem was already reported with the same
// message and is not over, Once does nothing.
func (r *Reporter) Once(key string, n Notice, args ...any) { r.once(key, n.Message, n, args) }

// once does the same as Once, but compares text in place of the message.
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

// Over notes that the problem that key names is over. If it occurs again, Once will report it
// again. Over reports whether there was such a problem.
func (r *Reporter) Over(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.open[key]
	delete(r.open, key)
	return was
}

// OnceErr calls Once with the text of err added to the message. If err is nil, it calls Over. If
// two errors differ only in digits, they count as the same error. Digits can be a port, a time or a
// number of tries.
func (r *Reporter) OnceErr(key string, err error, n Notice, args ...any) {
	if err == nil {
		r.Over(key)
		return
	}
	text := n.Message + withoutDigits(err.Error())
	n.Message += err.Error()
	r.once(key, text, n, args)
}

// Contain calls f and returns its error. If f panics, Contain counts the panic, logs the stack,
// reports it, and returns a [*contain.PanicError]. So other components continue.
func (r *Reporter) Contain(f func() error) error {
	var failed error
	err := contain.Panics(func() error { failed = f(); return nil })
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		r.panicked(p)
		return err
	}
	return failed // the error may wrap a panic that was already contained and counted by a function that f called
}

// Value does the same as Contain for a function with a result. After a panic, the result is the
// zero value.
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

// Panics returns the number of panics of the component.
func (r *Reporter) Panics() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.panics
}

// withoutDigits returns a text without its digits. Digits can change from one try to the next, for
// example in times, ports and process IDs.
func withoutDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// goodRun is the minimum length of a run after which the pause begins with its first value again.
const goodRun = time.Minute

// Run calls f. If f panics, Run calls f again after a pause, until f returns or ctx ends.
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
