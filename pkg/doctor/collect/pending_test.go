package collect

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// runs reads the source with a new collector and returns the fact.
func runs(t *testing.T, p *Pending, source string, read func(context.Context) (int, error)) fact.Fact[int] {
	t.Helper()
	c := &collector{Options: Options{Pending: p}, slots: make(chan struct{}, maxAtOnce())}
	c.host = ownNetns(t)
	var fact fact.Fact[int]
	take(t.Context(), c, &fact, source, 10*time.Millisecond, read)
	c.waiting.Wait()
	return fact
}

func TestSourceThatHangsIsReadOnce(t *testing.T) {
	p := &Pending{}
	release := make(chan struct{})
	reads := make(chan struct{}, 100)
	hang := func(context.Context) (int, error) { reads <- struct{}{}; <-release; return 7, nil }
	if f := runs(t, p, "a", hang); f.OK() || !strings.Contains(f.Error, "not read within") {
		t.Errorf("the first run: %+v", f)
	}
	for range 5 {
		if f := runs(t, p, "a", hang); f.OK() || f.Source != "a" || !strings.Contains(f.Error, "has not answered since") {
			t.Errorf("a later run: %+v", f)
		}
	}
	if n := len(reads); n != 1 {
		t.Errorf("it was read %d times", n)
	}
	if f := runs(t, p, "b", func(context.Context) (int, error) { return 8, nil }); f.Value != 8 || !f.OK() {
		t.Errorf("another source: %+v", f)
	}
	close(release)
	answers := func(context.Context) (int, error) { return 9, nil }
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if f := runs(t, p, "a", answers); f.OK() && f.Value == 9 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("it is not read again: %+v", f)
		}
	}
	noted := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.reads) }
	for end := time.Now().Add(time.Minute); noted() != 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the read that ended is still noted")
		}
	}
}

// TestFactsOfOneSourceAreReadInOneRun: one run may read the same source for several facts.
func TestFactsOfOneSourceAreReadInOneRun(t *testing.T) {
	p := &Pending{}
	c := &collector{Options: Options{Pending: p}, slots: make(chan struct{}, maxAtOnce())}
	c.host = ownNetns(t)
	facts := make([]fact.Fact[int], 5)
	for i := range facts {
		take(t.Context(), c, &facts[i], "a", time.Minute, func(context.Context) (int, error) { return i, nil })
	}
	c.waiting.Wait()
	for i, f := range facts {
		if !f.OK() || f.Value != i {
			t.Errorf("%+v", f)
		}
	}
}

// TestTwoRunsReadASourceAtTheSameTime: rail-agent may judge its node at the same time as somebody
// asks it for the node's facts.
func TestTwoRunsReadASourceAtTheSameTime(t *testing.T) {
	p := &Pending{}
	reading, release := make(chan struct{}), make(chan struct{})
	first := &collector{Options: Options{Pending: p}, slots: make(chan struct{}, maxAtOnce())}
	first.host = ownNetns(t)
	var slow fact.Fact[int]
	take(t.Context(), first, &slow, "a", time.Minute, func(context.Context) (int, error) { close(reading); <-release; return 1, nil })
	<-reading
	if f := runs(t, p, "a", func(context.Context) (int, error) { return 2, nil }); !f.OK() || f.Value != 2 {
		t.Errorf("the second run: %+v", f)
	}
	close(release)
	if first.waiting.Wait(); !slow.OK() || slow.Value != 1 {
		t.Errorf("the first run: %+v", slow)
	}
}

func TestSourcesThatHangAreBounded(t *testing.T) {
	p := &Pending{}
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for i := range maxPending {
		runs(t, p, fmt.Sprint(i), func(context.Context) (int, error) { <-release; return 0, nil })
	}
	if f := runs(t, p, "another", func(context.Context) (int, error) { return 1, nil }); f.OK() || !strings.Contains(f.Error, "other sources") {
		t.Errorf("%+v", f)
	}
}

// TestSourceIsAskedAgainAfterARunThatWasEnded: if the client of a run goes away, this does not mean
// that the sources hang.
func TestSourceIsAskedAgainAfterARunThatWasEnded(t *testing.T) {
	p := &Pending{}
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	c := &collector{Options: Options{Pending: p}, slots: make(chan struct{}, maxAtOnce()), host: ownNetns(t)}
	var fact fact.Fact[int]
	take(ctx, c, &fact, "a", time.Minute, func(context.Context) (int, error) { cancel(); <-release; return 1, nil })
	if c.waiting.Wait(); fact.OK() || !strings.Contains(fact.Error, "canceled") {
		t.Errorf("the run that was ended: %+v", fact)
	}
	if f := runs(t, p, "a", func(context.Context) (int, error) { return 2, nil }); !f.OK() || f.Value != 2 {
		t.Errorf("the next run: %+v", f)
	}
}

// ownNetns opens the netns of this thread. Reads that hang may need it after the test.
func ownNetns(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return f
}
