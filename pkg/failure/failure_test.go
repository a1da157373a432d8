package failure

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

var errCause = fmt.Errorf("open x: %w", fs.ErrNotExist)

func TestTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{New(IO, "the disk %q", "a"), `the disk "a"`},
		{New(IO, "the disk is full").Cure("free some"), "the disk is full; free some"},
		{New(IO, "the disk is full").Cure("free %d%% of %s", 5, "it"), "the disk is full; free 5% of it"},
		{Wrap(errCause, IO, "state of %s", "c1"), "state of c1: open x: file does not exist"},
		{From(errCause, IO, "state").Cure("make it"), "state: open x: file does not exist; make it"},
		{From(errCause, IO, "state of %s", "c1").Cure("make %q", "x"), `state of c1: open x: file does not exist; make "x"`},
		{WithCure(errCause, "make 100% of it"), "open x: file does not exist; make 100% of it"},
		{From(errCause, IO, "").Cure("make it"), "open x: file does not exist; make it"},
		{Wrap(errCause, IO, ""), "open x: file does not exist"},
		{From(From(errCause, IO, "inner").Cure("make it"), NICLent, "outer").Cure("wait"), "outer: inner: open x: file does not exist; make it; wait"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestWrapKeepsTheCause(t *testing.T) {
	if Wrap(nil, IO, "what") != nil || From(nil, IO, "what").Cure("cure") != nil || WithCure(nil, "cure") != nil {
		t.Error("no cause is an error")
	}
	if err := Wrap(fmt.Errorf("more: %w", Wrap(errCause, IO, "x")), Kernel, "y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cause of %v is lost", err)
	}
}

// TestCureLeavesItsErrorAsItIs: a function may return an error variable with a cure. Other callers
// of the variable must not get this cure.
func TestCureLeavesItsErrorAsItIs(t *testing.T) {
	left := New(IO, "the netns is gone")
	if cured := left.Cure("nothing to do"); !errors.Is(cured, left) || left.Error() != "the netns is gone" {
		t.Errorf("%q of %q", cured, left)
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want Kind
	}{
		{"ours", New(NICLent, "x"), NICLent},
		{"with a cure", New(NICLent, "x").Cure("wait"), NICLent},
		{"wrapped in Go's way", fmt.Errorf("a: %w", New(NICLent, "x")), NICLent},
		{"the outer of two", Wrap(New(NICLent, "x"), NotReturned, "y"), NotReturned},
		{"joined", errors.Join(errCause, WithCure(errCause, "y"), New(NICLent, "x")), NICLent},
		{"none", errCause, Internal},
		{"no error", nil, Internal},
	} {
		if got := KindOf(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if err := Wrap(New(NICLent, "x"), NotReturned, "y"); !errors.Is(err, NICLent) || errors.Is(err, Kernel) {
		t.Error("errors.Is does not tell the kinds in the tree of an error")
	}
}

func TestReasonLacksTheCure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{New(NICProtected, "ens1 must stay").Cure("choose another"), "ens1 must stay"},
		{WithCure(errors.New("plain"), "try again"), "plain"},
		{New(NICProtected, "ens1 must stay"), "ens1 must stay"},
		{errors.New("plain"), "plain"},
	} {
		if have := Reason(c.err); have != c.want {
			t.Errorf("%v: %q, not %q", c.err, have, c.want)
		}
	}
}

func TestBecauseKeepsTheTextAndWrapsBoth(t *testing.T) {
	missing := errors.New("no such link")
	err := Because(fmt.Errorf("%w ens1", missing), fs.ErrNotExist)
	if err.Error() != "no such link ens1" || !errors.Is(err, missing) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q", err)
	}
}
