package agent

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// A link can be down for days: it is looked at less and less often.
func TestLinksThatStayDownAreLookedAtLessAndLess(t *testing.T) {
	k, r := newStuckKeeper(t)
	a := newAnnouncer(k)
	now := time.Now()
	if next := a.look(now); next != now.Add(slow) || len(a.late) != 0 {
		t.Errorf("without such a link: next look after %v", next.Sub(now))
	}
	r.Phase, r.Link = ledger.Lent, &ledger.Link{}
	if err := k.node.Ledger.Put(r); err != nil {
		t.Fatal(err)
	}
	began, looks := now, 0
	for ; now.Before(began.Add(time.Hour)); looks++ {
		next := a.look(now)
		age := now.Sub(began)
		if pause := next.Sub(now); pause < firstLinkCheck || pause > max(firstLinkCheck, min(age/linkCheckRatio, slow)) {
			t.Fatalf("after %v the next look is %v later", age, pause)
		}
		if again := a.look(now.Add(time.Millisecond)); !again.Equal(next) {
			t.Errorf("a changed record makes it look %v later", again.Sub(next))
		}
		now = next
	}
	if looks > 250 {
		t.Errorf("%d looks in an hour", looks)
	}
	if err := k.node.Ledger.Remove(r); err != nil {
		t.Fatal(err)
	}
	if a.look(now); len(a.late) != 0 {
		t.Error("it remembers an attachment that has ended")
	}
}
