package agent

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
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// newStuckKeeper returns a keeper of a node with one attachment to end. Its IPAM
// plugin is not installed, so every try fails.
func newStuckKeeper(t *testing.T) (*keeper, *ledger.Record) {
	t.Helper()
	need.Root(t)
	dir := filepath.Join(t.TempDir(), "state")
	k, err := newKeeper(&agent{Options: Options{Log: slog.New(slog.DiscardHandler)}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.node.Close)
	pod := ledger.Netns{NetnsID: link.NetnsID{Inode: 1}, Path: filepath.Join(t.TempDir(), "gone")}
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Plugin: "macvlan", Child: &ledger.Child{Master: "ens1"}, Phase: ledger.Freeing, Created: time.Now().UTC(),
		Netns: pod, HostNetns: ledger.Netns{NetnsID: k.node.Netns.ID},
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
	for try := 1; try <= 3; try++ {
		started, _, _ := k.look(now, maxConcurrent)
		if started != 1 {
			t.Fatalf("try %d: %d were begun with; %s", try, started, k.unreadable)
		}
		if started, _, _ := k.look(now, maxConcurrent); started != 0 {
			t.Error("another try was begun beside the first")
		}
		k.done(<-k.ended)
		d := k.duties[r.Key]
		if d == nil || d.tries != try || !errors.Is(d.err, errKept) {
			t.Fatalf("after try %d: %+v", try, d)
		}
		for _, before := range []time.Duration{d.pause, d.pause / 2, time.Nanosecond} {
			started, full, next := k.look(d.next.Add(-before), maxConcurrent)
			if started != 0 || full || next.After(d.next) {
				t.Errorf("%s before the time of the next try: %d were begun with, next look %s after that time", before, started, next.Sub(d.next))
			}
		}
		now = d.next
	}
}

func TestPausesBetweenTriesGrow(t *testing.T) {
	k, r := newStuckKeeper(t)
	k.duties[r.Key] = &duty{record: r}
	var pauses []time.Duration
	for range 11 {
		before := time.Now()
		next := k.done(outcome{key: r.Key, err: errKept})
		pause := k.duties[r.Key].pause
		if next.Before(before.Add(pause)) || next.After(time.Now().Add(pause)) {
			t.Errorf("the next look is in %s, after a pause of %s", time.Until(next), pause)
		}
		pauses = append(pauses, pause/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}; !slices.Equal(pauses, want) {
		t.Errorf("pauses in seconds are %d, want %d", pauses, want)
	}
}

// TestAttachmentThatWaitsForALockIsNoErrorAtFirst has another attachment that holds the
// lock of the NICs' names while the kernel stops its NIC.
func TestAttachmentThatWaitsForALockIsNoErrorAtFirst(t *testing.T) {
	k, r := newStuckKeeper(t)
	said := told{}
	k.Teller = said
	k.look(time.Now(), maxConcurrent)
	<-k.ended
	d := k.duties[r.Key]
	busy := outcome{key: r.Key, err: fmt.Errorf("names of the host's links: %w", statefile.ErrBusy)}
	if next := k.done(busy); time.Until(next) > retryLocked || d.err != nil || len(said) != 0 {
		t.Errorf("the next try is in %s, the error %v", time.Until(next), d.err)
	}
	d.since = d.since.Add(-lockedTimeout)
	if k.done(busy); !errors.Is(d.err, statefile.ErrBusy) || said["NotReturned"] != 1 {
		t.Errorf("after %s nothing is wrong yet", lockedTimeout)
	}
}

// An end that was canceled because the agent ends is no failure: the next agent goes on.
func TestEndsThatTheAgentsEndCancelsAreNoFailures(t *testing.T) {
	k, r := newStuckKeeper(t)
	said := told{}
	k.Teller = said
	k.duties[r.Key] = &duty{record: r}
	ending, cancel := context.WithCancel(t.Context())
	cancel()
	k.ending = ending
	if k.done(outcome{key: r.Key, err: context.Canceled}); len(said) != 0 || k.duties[r.Key].err != nil {
		t.Errorf("notices: %v, error: %v", said, k.duties[r.Key].err)
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
