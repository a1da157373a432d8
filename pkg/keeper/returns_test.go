package keeper

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// TestReturnedNICIsComparedOnceAndLater ends attachments in each way that the watch can see.
func TestReturnedNICIsComparedOnceAndLater(t *testing.T) {
	k, r := newStuckKeeper(t)
	if err := k.node.Ledger.Remove(r); err != nil {
		t.Fatal(err)
	}
	lend := func(id string, phase ledger.Phase) *ledger.Record {
		t.Helper()
		lent := *r
		lent.Key.ContainerID, lent.Phase, lent.IPAM, lent.Child = id, phase, nil, nil
		lent.Loan = &ledger.Loan{NIC: "nic-" + id, Name: "ens1", Snapshot: &nicstate.Snapshot{Name: "ens1"}}
		if err := k.node.Ledger.Put(&lent); err != nil {
			t.Fatal(err)
		}
		return &lent
	}
	w, compared := newReturnWatch(k), []string{}
	w.compare = func(_ *attachment.Node, r *ledger.Record) (bool, error) {
		compared = append(compared, r.ContainerID)
		return r.ContainerID == "changed", map[bool]error{true: errors.New("no such netns")}[r.ContainerID == "unreadable"]
	}
	now := time.Now()
	expect := func(when string, after time.Duration, want ...string) (next time.Time) {
		t.Helper()
		next = w.scan(now.Add(after))
		if !slices.Equal(compared, want) {
			t.Errorf("%s: compared are %q, not %q", when, compared, want)
		}
		return next
	}
	changed, freeing := lend("changed", ledger.Lent), lend("freeing", ledger.Lent)
	stays := lend("stays", ledger.Lent)
	expect("lent", 0)
	lend("freeing", ledger.Freeing) // its NIC is home
	if err := k.node.Ledger.Remove(changed); err != nil {
		t.Fatal(err)
	}
	if next := expect("just returned", time.Second); !next.Equal(now.Add(time.Second + settledAfter)) {
		t.Errorf("the next look is %s after the return", next.Sub(now.Add(time.Second)))
	}
	if k.noticed.Wait(t.Context(), 0) {
		t.Error("it has told the keeper already")
	}
	expect("too early", settledAfter)
	slices.Sort(compared)
	w.scan(now.Add(time.Second + settledAfter))
	if slices.Sort(compared); !slices.Equal(compared, []string{"changed", "freeing"}) {
		t.Errorf("compared are %q", compared)
	}
	if !k.noticed.Wait(t.Context(), time.Minute) {
		t.Error("the keeper does not look at the note")
	}
	compared = nil
	if err := k.node.Ledger.Remove(freeing); err != nil {
		t.Fatal(err)
	}
	expect("once", time.Minute)
	// The same key, of another ADD: the former attachment has ended.
	stays.Created = stays.Created.Add(time.Second)
	if err := k.node.Ledger.Put(stays); err != nil {
		t.Fatal(err)
	}
	expect("another ADD", 2*time.Minute)
	expect("another ADD, later", 3*time.Minute, "stays")
}
