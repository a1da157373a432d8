package attachment

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// Swept is the outcome of a sweep, or of its dry run, for one attachment.
type Swept struct {
	Record *ledger.Record
	Err    error // why it could not be ended; nil if it was ended
}

// Sweep ends the attachments of this host netns whose pod netns is gone, and
// those whose addresses are still to be freed. An attachment that another process works
// on is left for the next sweep, and so is one whose interface the kernel has not yet
// returned or deleted: Sweep waits for all of these together up to [SweepWait]. An IPAM
// plugin gets endWait.
func (n *Node) Sweep(ctx context.Context) []Swept {
	return n.sweep(ctx, ledger.Key{}, SweepWait)
}

// sweep is [Node.Sweep] with another wait. In an ADD it leaves out the ADD's
// own attachment, except, and does not call an IPAM plugin again that has just
// failed.
func (n *Node) sweep(ctx context.Context, except ledger.Key, wait time.Duration) []Swept {
	var swept []Swept
	until := time.Now().Add(wait)
	adding := except != ledger.Key{}
	find := n.Stale
	if adding {
		// Many ADDs start at once, each beside all attachments of the node.
		find = func() ([]*ledger.Record, []error) { return n.Ledger.ListIf(n.stale) }
	}
	stale, errs := find()
	for _, err := range errs {
		n.Log.Warn("cannot read a record", "err", err)
	}
	for _, r := range stale {
		if r.Key == except || adding && r.Phase == ledger.Freeing && time.Since(r.Updated) < retryAfter {
			continue
		}
		err := n.End(ctx, r, max(0, time.Until(until)))
		if errors.Is(err, statefile.ErrBusy) {
			continue
		}
		if err != nil {
			n.LogOf(r).Warn("cannot end the attachment, whose pod netns is gone", "err", err)
		}
		swept = append(swept, Swept{Record: r, Err: err})
	}
	return swept
}

// Stale returns the attachments that a sweep would end, and an error for each record
// that cannot be read.
func (n *Node) Stale() ([]*ledger.Record, []error) {
	records, errs := n.Ledger.List()
	return slices.DeleteFunc(records, func(r *ledger.Record) bool { return !n.stale(r) }), errs
}

// stale reports whether a sweep ends the attachment. It needs a record's head only, see
// [ledger.Ledger.ListIf].
func (n *Node) stale(r *ledger.Record) bool {
	return n.Ledger.OfHost(r, n.Netns.ID) && (r.Phase == ledger.Freeing || !n.Alive(r))
}

// End ends one attachment that [Node.Stale] returned, if it is still the same
// one: the runtime may have ended it, and reused its name. wait bounds the wait
// for a device on its way to the host. The error wraps [statefile.ErrBusy] if
// another process has the attachment's lock. If the IPAM plugin is missing End
// returns nil, and the record stays, in phase [ledger.Freeing].
func (n *Node) End(ctx context.Context, stale *ledger.Record, wait time.Duration) error {
	lock, err := n.Ledger.TryLockAttachment(stale.Key)
	if err != nil {
		return err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	r, err := n.sameAs(stale)
	if err != nil || r == nil || r.Phase != ledger.Freeing && n.Alive(r) {
		return err
	}
	bound := endWait
	if wait >= returnWait {
		bound += waitFor(r) - returnWait
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return n.release(ctx, r, wait, all)
}

// endIfUnchanged ends another attachment if its record is still judged. It waits for the
// attachment's lock and NIC.
func (n *Node) endIfUnchanged(ctx context.Context, judged *ledger.Record, wait time.Duration) error {
	unlock, err := n.lock(ctx, judged.Key)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := n.sameAs(judged)
	if err != nil || r == nil {
		return err
	}
	return n.release(ctx, r, wait, all)
}

// sameAs reads the record again, and returns nil if it is gone or another ADD wrote it.
func (n *Node) sameAs(known *ledger.Record) (*ledger.Record, error) {
	r, err := n.Ledger.Get(known.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		return nil, nil
	case err != nil:
		return nil, err
	case !r.Same(known):
		return nil, nil
	}
	return r, nil
}
