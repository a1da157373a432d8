package keeper

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
)

const (
	// returnRest is the time from a change of the host's links to the scan for attachments that
	// have ended.
	returnRest = time.Second
	// settledAfter is the time from the end of an attachment to the second comparison of its NIC.
	// udev applies its .link files within milliseconds, and systemd-networkd and NetworkManager
	// configure a NIC within a second or two.
	settledAfter = 5 * time.Second
)

// returnWatch compares a NIC with its record once more, some time after a DEL or the keeper has
// returned the NIC. It can do that only for records that it has seen during the loan.
type returnWatch struct {
	dir      *stateDir
	changed  *component.Trigger // the host's links have changed
	records  *ledger.Cache
	lent     map[ledger.Key]*ledger.Record
	returned []returnedNIC // the NIC that was returned first is first

	compare func(*attachment.Node, *ledger.Record) (bool, error) // netdev.CompareLater, except in tests
}

// returnedNIC is the former record of a NIC that is to be compared.
type returnedNIC struct {
	record *ledger.Record
	due    time.Time
}

func newReturnWatch(k *stateDir) *returnWatch {
	return &returnWatch{dir: k, changed: component.NewTrigger(), records: k.node.Ledger.NewCache(), compare: netdev.CompareLater}
}

// loop returns the loop that checks after changes of the host's links, and when a comparison is
// due.
func (w *returnWatch) loop() *component.Loop {
	return &component.Loop{
		Reporter: w.dir.Reporter, Trigger: w.changed, Settle: returnRest,
		Do: func(context.Context) time.Time { return w.scan(time.Now()) },
	}
}

// scan compares the NICs that are due. It returns the time of the next scan.
func (w *returnWatch) scan(now time.Time) (next time.Time) {
	next = now.Add(slow)
	records, errs := w.records.Held(w.dir.node.Netns.ID, func(r *ledger.Record) bool { return r.LendsNetdev() && r.Loan.Snapshot != nil })
	lent := map[ledger.Key]*ledger.Record{}
	if len(errs) > 0 { // nothing is known about a record that cannot be read: it may be one of w.lent
		maps.Copy(lent, w.lent)
	}
	for _, r := range records {
		lent[r.Key] = r
	}
	for key, r := range w.lent {
		// The NIC of a failed ADD is compared too.
		if still := lent[key]; still == nil || !still.Same(r) {
			w.returned = append(w.returned, returnedNIC{r, now.Add(settledAfter)})
		}
	}
	w.lent = lent
	due := 0
	for due < len(w.returned) && !w.returned[due].due.After(now) {
		w.compareOne(w.returned[due].record)
		due++
	}
	w.returned = slices.Delete(w.returned, 0, due)
	if len(w.returned) > 0 {
		next = earlier(next, w.returned[0].due)
	}
	return next
}

// compareOne compares a NIC. If there is a new note, the keeper reports the note.
func (w *returnWatch) compareOne(r *ledger.Record) {
	found, err := w.compare(w.dir.node, r)
	if err != nil {
		w.dir.log.Warn("cannot compare the returned NIC with its snapshot", "nic", r.NICName(), "err", err)
	}
	if found {
		w.dir.noticed.Fire()
	}
}
