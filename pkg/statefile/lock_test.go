package statefile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func openTemp(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestLockHasOneHolder(t *testing.T) {
	d := openTemp(t)
	held := 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				l, err := d.Lock(t.Context(), "lock")
				if err != nil {
					t.Error(err)
					return
				}
				if held++; held != 1 {
					t.Errorf("%d holders", held)
				}
				held--
				if err := l.UnlockAndRemove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if d.Exists("lock") {
		t.Error("the lock's file is left")
	}
}

func TestTryLockDoesNotWait(t *testing.T) {
	d := openTemp(t)
	l, err := d.TryLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.TryLock("lock"); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if l, err = d.TryLock("lock"); err != nil {
		t.Fatal(err)
	}
	_ = l.Unlock()
}

func TestWaitForALockEndsWithItsContext(t *testing.T) {
	d := openTemp(t)
	l, err := d.Lock(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := d.Lock(ctx, "lock"); failure.KindOf(err) != failure.TryAgain || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	// The abandoned waiter releases the lock when it gets it.
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if l, err = d.Lock(ctx, "lock"); err != nil {
		t.Fatal(err)
	}
	_ = l.Unlock()
}

func TestVolatileReachesSubdirectories(t *testing.T) {
	d := openTemp(t)
	d.Volatile()
	sub, err := d.Sub("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if d.Durable() || sub.Durable() {
		t.Error("it is still durable")
	}
	if err := sub.Write("file", []byte("x")); err != nil {
		t.Error(err)
	}
}
