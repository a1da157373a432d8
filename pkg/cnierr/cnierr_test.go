package cnierr

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
)

var errCause = fmt.Errorf("open x: %w", fs.ErrNotExist)

func TestTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{New(IO, "", "the disk %q", "a"), `the disk "a"`},
		{New(IO, "free some", "the disk is full"), "the disk is full; free some"},
		{Wrap(errCause, IO, "", "state of %s", "c1"), "state of c1: open x: file does not exist"},
		{Wrap(errCause, IO, "make it", "state"), "state: open x: file does not exist; make it"},
		{Wrap(errCause, IO, "make it", ""), "open x: file does not exist; make it"},
		{Wrap(errCause, IO, "", ""), "open x: file does not exist"},
		{Wrap(Wrap(errCause, IO, "make it", "inner"), NICLent, "wait", "outer"), "outer: inner: open x: file does not exist; make it; wait"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestWrapKeepsTheCause(t *testing.T) {
	if Wrap(nil, IO, "cure", "what") != nil {
		t.Error("no cause is an error")
	}
	if err := Wrap(fmt.Errorf("more: %w", Wrap(errCause, IO, "", "x")), Kernel, "", "y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cause of %v is lost", err)
	}
}

func TestCode(t *testing.T) {
	theirs := types.NewError(types.ErrTryAgainLater, "busy", "details")
	for _, c := range []struct {
		name string
		err  error
		want uint
	}{
		{"ours", New(NICLent, "", "x"), NICLent},
		{"wrapped in Go's way", fmt.Errorf("a: %w", New(NICLent, "", "x")), NICLent},
		{"the outer of two", Wrap(New(NICLent, "", "x"), NotHome, "", "y"), NotHome},
		{"joined", errors.Join(errCause, New(NICLent, "", "x")), NICLent},
		{"theirs", theirs, TryAgain},
		{"theirs, wrapped", fmt.Errorf("ipam: %w", theirs), TryAgain},
		{"theirs inside ours", Wrap(theirs, IPAM, "", "whereabouts"), IPAM},
		{"none", errCause, Internal},
		{"ours without one", New(0, "", "x"), Internal},
		{"theirs without one", &types.Error{Msg: "x"}, Internal},
		{"theirs inside ours without one", Wrap(theirs, 0, "", "x"), TryAgain},
	} {
		if got := Code(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// skel finds a *types.Error however deep, and prints that one: everything
// around it would be lost.
func TestToCNIKeepsTheWholeText(t *testing.T) {
	if ToCNI(nil) != nil {
		t.Error("no error became one")
	}
	inner := types.NewError(types.ErrTryAgainLater, "no address is left", "10.0.0.0/30")
	for _, c := range []struct {
		err  error
		code uint
		text string
	}{
		{Wrap(inner, IPAM, "make the range larger", "attachment c1/net1"), IPAM, "attachment c1/net1: no address is left; 10.0.0.0/30; make the range larger"},
		{fmt.Errorf("attachment c1/net1: %w", inner), TryAgain, "attachment c1/net1: no address is left; 10.0.0.0/30"},
		{errors.Join(New(NotHome, "", "one"), errCause), NotHome, "one\nopen x: file does not exist"},
		{errCause, Internal, "open x: file does not exist"},
	} {
		var got *types.Error
		if !errors.As(ToCNI(c.err), &got) {
			t.Errorf("%v is not what skel prints", c.err)
			continue
		}
		if got.Code != c.code || got.Msg != c.text || got.Details != "" {
			t.Errorf("%+v, want code %d and %q", got, c.code, c.text)
		}
		printed, err := json.Marshal(got)
		if err != nil || !json.Valid(printed) {
			t.Errorf("printed as %s, %v", printed, err)
		}
	}
}

// Codes below 100 are the specification's; a runtime acts on some of them.
func TestCodesAreNotTheSpecifications(t *testing.T) {
	seen := map[uint]bool{}
	for _, code := range []uint{NICNotFound, NICProtected, NICLent, NameTaken, NotHome, IPAM, BadRecord, Mismatch, Kernel} {
		if code < 100 || code == Internal || seen[code] {
			t.Errorf("code %d is taken", code)
		}
		seen[code] = true
	}
}

func TestToCNICutsWhatNobodyCanRead(t *testing.T) {
	var got *types.Error
	err := New(InvalidConfig, "the cure", "device %q", strings.Repeat("ö", 1<<20))
	if !errors.As(ToCNI(err), &got) || len(got.Msg) > 20<<10 || !utf8.ValidString(got.Msg) ||
		!strings.HasPrefix(got.Msg, "device \"ö") || !strings.HasSuffix(got.Msg, "; the cure") {
		t.Errorf("%d bytes: %.50q", len(got.Msg), got.Msg)
	}
}
