package keeper

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

func TestMissingNICIsReportedOnceAndAfterTwoLooks(t *testing.T) {
	k, r := newStuckKeeper(t)
	said := hear(k)
	pod := testnet.NewNetns(t, "pod")
	r.Netns = ledger.Netns{ID: pod.ID, Path: pod.Path}
	r.Phase, r.IPAM, r.Child = ledger.Lent, nil, nil
	r.Loan = &ledger.Loan{Name: "ens1", Snapshot: &nicstate.Snapshot{Name: "ens1"}, Identity: link.Identity{ParentDev: "0000:3b:00.0"}}
	put := func() {
		t.Helper()
		if err := k.node.Ledger.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	put()
	w, away := newNICWatch(k), true
	w.missing = func(_ *attachment.Node, lent []*ledger.Record) (map[ledger.Key]string, error) {
		if !away {
			return nil, nil
		}
		missing := map[ledger.Key]string{}
		for _, r := range lent {
			missing[r.Key] = "it no longer exists"
		}
		return missing, nil
	}
	now := time.Now()
	expect := func(when string, events, missing int) {
		t.Helper()
		if said["NICMissing"] != events || w.dir.nicsMissing != missing {
			t.Errorf("%s: %d Events, %d NICs missing, not %d and %d", when, said["NICMissing"], w.dir.nicsMissing, events, missing)
		}
	}
	if next := w.scan(now); next != now.Add(missingRest) {
		t.Errorf("the next look is after %v", next.Sub(now))
	}
	expect("at the first look", 0, 0)
	w.scan(now.Add(missingRest))
	w.scan(now.Add(2 * missingRest))
	expect("later", 1, 1)
	away = false
	w.scan(now.Add(3 * missingRest))
	expect("in the pod again", 1, 0)
	away, r.Phase = true, ledger.Returning
	put()
	w.scan(now.Add(4 * missingRest))
	w.scan(now.Add(5 * missingRest))
	expect("during its DEL", 1, 0)
}
