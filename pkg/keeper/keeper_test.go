package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// newStuckKeeper returns a keeper of a node with one attachment to end. Its IPAM
// plugin is not installed, so every try fails.
func newStuckKeeper(t *testing.T) (*stateDir, *ledger.Record) {
	t.Helper()
	need.Root(t)
	dir := filepath.Join(t.TempDir(), "state")
	all, err := New(Options{StateDirs: []string{dir}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Close)
	k := all.dirs[0]
	pod := ledger.Netns{ID: netns.ID{Inode: 1}, Path: filepath.Join(t.TempDir(), "gone")}
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Plugin: "macvlan", Child: &ledger.Child{Master: "ens1"}, Phase: ledger.Freeing, Created: time.Now().UTC(),
		Netns: pod, HostNetns: ledger.Netns{ID: k.node.Netns.ID},
		IPAM: &ledger.IPAM{Type: "nowhere", Path: t.TempDir(), Config: []byte(`{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{"type":"nowhere"}}`)},
	}
	if err := k.node.Ledger.Put(r); err != nil {
		t.Fatal(err)
	}
	return k, r
}

// Each kernel notification wakes the keeper. However many there are, it retries a
// failed attachment only after the pause.
func TestManyNotificationsCauseNoExtraTries(t *testing.T) {
	k, r := newStuckKeeper(t)
	now := time.Now()
	tries := func(now time.Time) (next time.Time) {
		next = k.scan(now, maxConcurrent)
		k.ends.Wait()
		return next
	}
	for try := 1; try <= 3; try++ {
		tries(now)
		d := k.tasks[r.Key]
		if d == nil || d.tries != try || !errors.Is(d.err, errKept) {
			t.Fatalf("after try %d: %+v", try, d)
		}
		pause := time.Until(d.next)
		for _, before := range []time.Duration{pause, pause / 2, time.Nanosecond} {
			if next := tries(d.next.Add(-before)); d.tries != try || next.After(d.next) {
				t.Errorf("%s before the time of the next try: %d tries, next look %s after that time", before, d.tries, next.Sub(d.next))
			}
		}
		now = d.next
	}
}

// While an attachment is being ended, no second try is begun for the same attachment. When the try
// is done, there is room for another one.
func TestOneEndOfAnAttachmentRunsAtATime(t *testing.T) {
	k, r := newStuckKeeper(t)
	d := newTask(r, time.Now())
	d.running, k.running, k.tasks[r.Key] = true, 1, d
	k.scan(time.Now(), maxConcurrent)
	if k.ends.Wait(); k.running != 1 || d.tries != 0 || k.full {
		t.Errorf("%d run, %d tries, full: %v", k.running, d.tries, k.full)
	}
	d.running = false
	if k.scan(time.Now(), 1); !k.full || k.running != 1 {
		t.Errorf("it was begun without room: %d run", k.running)
	}
	d.running = true
	k.done(r.Key, nil, 0)
	if !k.ended.Wait(t.Context(), time.Minute) {
		t.Error("its end makes no room")
	}
}

// An end may be done while a scan reads the records: what it has read is not ended again.
func TestAttachmentThatEndsDuringALookIsNotEndedAgain(t *testing.T) {
	k, r := newStuckKeeper(t)
	d := newTask(r, time.Now())
	d.running, k.running, k.tasks[r.Key] = true, 1, d
	stale, errs := k.stale()
	if len(stale) != 1 || len(errs) > 0 {
		t.Fatalf("%d to end, %v", len(stale), errs)
	}
	k.done(r.Key, nil, 0)
	k.begin(time.Now(), stale, nil, maxConcurrent)
	if k.ends.Wait(); len(k.tasks) != 0 {
		t.Error("it is ended again")
	}
	k.scan(time.Now(), maxConcurrent) // its record is there in this test
	if k.ends.Wait(); len(k.tasks) != 1 {
		t.Error("the next look forgets it")
	}
}

func TestPausesBetweenTriesGrow(t *testing.T) {
	k, r := newStuckKeeper(t)
	d := newTask(r, time.Now())
	k.tasks[r.Key] = d
	var pauses []time.Duration
	for range 11 {
		before := time.Now()
		k.done(r.Key, errKept, 0)
		pauses = append(pauses, d.next.Sub(before).Truncate(time.Second)/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}; !slices.Equal(pauses, want) {
		t.Errorf("pauses in seconds are %d, want %d", pauses, want)
	}
}

// TestAttachmentThatWaitsForALockIsNoErrorAtFirst has another attachment that holds the
// lock of the NICs' names while the kernel stops its NIC.
func TestAttachmentThatWaitsForALockIsNoErrorAtFirst(t *testing.T) {
	k, r := newStuckKeeper(t)
	said := hear(k)
	d := newTask(r, time.Now())
	k.tasks[r.Key] = d
	busy := fmt.Errorf("names of the host's links: %w", statefile.ErrBusy)
	if k.done(r.Key, busy, 0); time.Until(d.next) > retryLocked || d.err != nil || len(said) != 0 {
		t.Errorf("the next try is in %s, the error %v", time.Until(d.next), d.err)
	}
	d.since = d.since.Add(-lockedTimeout)
	if k.done(r.Key, busy, 0); !errors.Is(d.err, statefile.ErrBusy) || said["NotReturned"] != 1 {
		t.Errorf("after %s nothing is wrong yet", lockedTimeout)
	}
}

// An end that was canceled because the agent ends is no failure: the next agent goes on.
func TestEndsThatTheAgentsEndCancelsAreNoFailures(t *testing.T) {
	k, r := newStuckKeeper(t)
	said := hear(k)
	k.tasks[r.Key] = newTask(r, time.Now())
	ending, cancel := context.WithCancel(t.Context())
	cancel()
	k.ending = ending
	if k.done(r.Key, context.Canceled, 0); len(said) != 0 || k.tasks[r.Key].err != nil {
		t.Errorf("notices: %v, error: %v", said, k.tasks[r.Key].err)
	}
}

// Ends under way go on for a while when the agent is to end, and not for longer.
func TestContextOfEndsOutlivesTheAgentsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ends, cancel := after(ctx, endGrace)
		defer cancel()
		stop()
		time.Sleep(endGrace - time.Millisecond)
		synctest.Wait()
		if ends.Err() != nil {
			t.Error("it ended at once")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if ends.Err() == nil {
			t.Error("it goes on")
		}
	})
}
