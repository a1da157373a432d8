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

// Sweep ends the attachments of this host netns whose pod netns is gone, and the attachments whose
// addresses are still to be freed. It leaves an attachment that another process works on for the
// next sweep. It waits up to [SweepWait] in all for the interfaces that the kernel has not yet
// returned or deleted, and leaves the attachments whose interfaces need longer for the next sweep.
// Each IPAM plugin may take up to endWait.
func (n *Node) Sweep(ctx context.Context) []Swept {
	return n.sweep(ctx, ledger.Key{}, SweepWait)
}

// sweep does what [Node.Sweep] does, but waits up to wait. In an ADD, except is the key of the
// ADD's own attachment, which sweep leaves out. Then sweep also leaves out the attachments whose
// IPAM plugin failed within retryAfter.
func (n *Node) sweep(ctx context.Context, except ledger.Key, wait time.Duration) []Swept {
	var swept []Swept
	until := time.Now().Add(wait)
	adding := except != ledger.Key{}
	find := n.Stale
	if adding {
		// Many ADDs may start at once, and each of them reads the records of the whole node.
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

// stale reports whether a sweep would end the attachment. It needs only the head of the record, see
// [ledger.Ledger.ListIf].
func (n *Node) stale(r *ledger.Record) bool {
	return n.Ledger.OfHost(r, n.Netns.ID) && (r.Phase == ledger.Freeing || !n.Alive(r))
}

// End ends one attachment that [Node.Stale] returned. It does nothing if the record is gone or
// belongs to another attachment now, because the runtime may have ended the attachment and reused
// its name. wait bounds the wait for a device that is on its way to the host. The error wraps
// [statefile.ErrBusy] if another process has the attachment's lock. If the IPAM plugin is missing,
// End returns nil and the record stays, in phase [ledger.Freeing].
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

// endIfUnchanged ends another attachment, unless its record is no longer the record judged. It
// waits for the lock and the NIC of the attachment.
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

// sameAs reads the record again. It returns nil if the record is gone or if another ADD wrote it.
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
