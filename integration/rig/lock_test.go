package rig

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestNoMoreMachinesRunThanAreAllowed(t *testing.T) {
	root := t.TempDir()
	var log bytes.Buffer
	first, err := LockMachine(t.Context(), root, 2, &log)
	if err != nil {
		t.Fatal(err)
	}
	second, err := LockMachine(t.Context(), root, 2, &log)
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	if log.Len() > 0 {
		t.Errorf("it waited for a machine that may run: %s", &log)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	if _, err := LockMachine(ctx, root, 2, &log); !errors.Is(err, context.DeadlineExceeded) || strings.Count(log.String(), "waiting") != 1 {
		t.Errorf("a third of two: %v, and it said %q", err, &log)
	}
	time.AfterFunc(100*time.Millisecond, first)
	third, err := LockMachine(t.Context(), root, 2, &log)
	if err != nil {
		t.Fatalf("a third, after the first: %v", err)
	}
	third()
	// The image may be built while machines run.
	build, err := LockBuild(t.Context(), root, &log)
	if err != nil {
		t.Fatalf("a build beside machines: %v", err)
	}
	build()
}
