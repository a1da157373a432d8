package attachment

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// This file is for chained plugins. A chained plugin makes no interface: it adds a part to the
// attachment of the previous plugin in the chain. The part is recorded under the attachment's key.
// If the previous plugin is ours, the part is added to the record of that plugin. Otherwise the
// part gets its own record, which has neither a loan nor a child.

// addChained adds the part of a chained plugin to the attachment, and returns prevResult unchanged.
// If addChained fails, nothing of the part is left, and the attachment is as it was before.
func (n *Node) addChained(ctx context.Context, c *Call, p *Plan) (json.RawMessage, error) {
	if err := c.Conf.NeedPrevResult(); err != nil {
		return nil, err
	}
	previous, err := c.prevResult()
	if err != nil {
		return nil, err
	}
	result, err := c.unchanged()
	if err != nil || p.Chained.Off() {
		return result, err
	}
	tx, done, err := n.begin(ctx, c)
	if err != nil {
		return nil, err
	}
	defer done()
	tx.Layer3.IPs = c.addressesOf(previous)
	tx.Record, err = n.join(ctx, tx, p.Chained)
	if err != nil || p.Chained.Recorded(tx.Record) {
		return result, err
	}
	if err := n.endOthers(ctx, tx, p); err != nil {
		return nil, err
	}
	if _, err := tx.run(ctx, p); err != nil {
		return nil, failed(err, tx.rollback(ctx, p))
	}
	return result, nil
}

// join returns the record for the chained part. If a plugin of ours made the interface, this is the
// record of the attachment, otherwise a new record. The record may already have the part, and the
// part may be in place. Then the caller has nothing to do.
func (n *Node) join(ctx context.Context, tx *Tx, part Chained) (*ledger.Record, error) {
	old, err := n.getOrSetAside(tx.Key)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return tx.newRecord(tx.Pod, n.HostNetns()), nil
	}
	// The record is that of an earlier pod with the same name, or of an ADD that was killed.
	stale := !old.Netns.Equal(tx.Pod.ID) || !n.Ledger.Holds(old) || !old.HasInterface() && old.Phase != ledger.Lent
	switch {
	case stale:
	case old.Phase != ledger.Lent:
		return nil, failure.New(failure.TryAgain, "the attachment %s is not complete (%s)", tx.Key, old.Phase).Cure("end it with DEL first")
	case !part.Recorded(old) || part.InPlace(old, tx.Pod):
		return old, nil
	case old.HasInterface():
		return old, n.releaseChained(ctx, old, part)
	}
	// The record is stale, or it has a chained part of ours that is no longer in place.
	if err := n.endFirst(ctx, old); err != nil {
		return nil, err
	}
	return tx.newRecord(tx.Pod, n.HostNetns()), nil
}

// releaseChained releases a chained part of another plugin's attachment, and
// removes the part from the record.
func (n *Node) releaseChained(ctx context.Context, r *ledger.Record, part Chained) error {
	// In phase Freeing the part was already released with the interface, and may have been lent
	// again.
	if n.Ledger.Holds(r) {
		isSelf := func(p Part) bool { return p.Name() == part.Name() }
		if err := n.releaseParts(ctx, r, returnWait, isSelf); err != nil {
			return err
		}
	}
	part.Forget(r)
	return n.Ledger.Put(r)
}

// delChained releases the chained part of the attachment. The runtime calls it before the DEL of
// the plugin that made the interface. It needs neither the configuration nor the interface nor the
// pod netns.
func (n *Node) delChained(ctx context.Context, c *Call, p *Plan) error {
	r, err := n.Ledger.Get(c.Key)
	recorded := true
	switch {
	case err == nil && !r.HasInterface():
		err = n.release(ctx, r, returnWait, all)
	case err == nil && p.Chained.Recorded(r):
		err = n.releaseChained(ctx, r, p.Chained)
	case err == nil, errors.Is(err, ledger.ErrNoRecord):
		err, recorded = nil, false
	case isCorrupt(err):
		n.Log.Warn("record is corrupt, so the attachment is found by its interface", "err", err)
		err, recorded = nil, false
	default:
		return err
	}
	return errors.Join(err, n.takeOver(ctx, c, p, recorded))
}

// checkChained compares the attachment's chained part with what ADD made.
func (n *Node) checkChained(ctx context.Context, c *Call, p *Plan) error {
	if err := c.Conf.NeedPrevResult(); err != nil {
		return err
	}
	if _, err := c.prevResult(); err != nil || p.Chained.Off() {
		return err
	}
	checking, done, err := n.checking(c)
	if err != nil {
		return err
	}
	defer done()
	return p.Chained.Check(ctx, checking)
}

// openPod opens the pod netns of a DEL. It returns nil if the netns is gone.
func openPod(path string) (*netns.Netns, error) {
	if path == "" {
		return nil, nil
	}
	pod, err := netns.Open(path)
	if errors.Is(err, netns.ErrNoNetns) {
		return nil, nil
	}
	return pod, err
}
