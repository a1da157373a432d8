package attachment

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Upstream has what a part needs to end an attachment that has no record. Either an upstream plugin
// made the attachment, or one of our plugins made it and its record is lost.
type Upstream struct {
	*Call
	Node *Node
	// Pod is the pod netns, nil if it is gone.
	Pod *netns.Netns
	// Recorded is set if a chained plugin makes the call and its part was in a record.
	Recorded bool
}

// Del ends an attachment by its record alone. If there is no usable record (the attachment was
// never made, has already ended, has a corrupt record, or was made by upstream's plugin), the parts
// end whatever they recognize without a record.
func (n *Node) Del(ctx context.Context, c *Call, p *Plan) error {
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		return err
	}
	defer unlock()
	n.CNIPath = c.Path
	if p.Chained != nil {
		return n.delChained(ctx, c, p)
	}
	r, err := n.Ledger.Get(c.Key)
	switch {
	case err == nil:
		return n.delRecorded(ctx, c, p, r)
	case errors.Is(err, ledger.ErrNoRecord):
	case isCorrupt(err):
		n.Log.Warn("record is corrupt, so the attachment is found by its interface", "err", err)
	default:
		return err
	}
	return n.delUnrecorded(ctx, c, p)
}

// delRecorded ends an attachment by its record. If another plugin made the interface, delRecorded
// also ends the attachment by the interface.
func (n *Node) delRecorded(ctx context.Context, c *Call, p *Plan, r *ledger.Record) error {
	err := n.release(ctx, r, returnWait, all)
	if r.HasInterface() {
		return err
	}
	// Only a chained part is ours: upstream's plugin made the interface.
	return errors.Join(err, n.delUnrecorded(ctx, c, p))
}

// isCorrupt reports whether err says that a record is corrupt, so that no version can read it. A
// record of a newer version is not corrupt.
func isCorrupt(err error) bool {
	return failure.KindOf(err) == failure.BadRecord && !ledger.IsNewer(err)
}

// delUnrecorded ends an attachment that has no record. It frees the addresses with the
// configuration and environment of this DEL.
func (n *Node) delUnrecorded(ctx context.Context, c *Call, p *Plan) error {
	free := func() error {
		err := n.order.Addresses.Pass(ctx, n, c, "DEL")
		if errors.Is(err, ErrNotInstalled) {
			return nil // a missing plugin has allocated nothing
		}
		return err
	}
	if n.IPAMByInterface(c.Conf.IPAM.Type) {
		return n.delByInterface(ctx, c, p, free)
	}
	taken := n.takeOver(ctx, c, p, false)
	return errors.Join(taken, free())
}

// IPAMByInterface reports whether the IPAM plugin works on the interface. See
// [Addresses.ByInterface].
func (n *Node) IPAMByInterface(plugin string) bool { return n.order.Addresses.ByInterface(plugin) }

// delByInterface frees the addresses while the interface is in the pod, and then takes the
// interface over. If the IPAM plugin hangs, delByInterface takes the interface over after
// [freeWait].
func (n *Node) delByInterface(ctx context.Context, c *Call, p *Plan, free func() error) error {
	freed := make(chan error, 1)
	go func() { freed <- free() }()
	waiting, cancel := context.WithTimeout(ctx, freeWait)
	defer cancel()
	select {
	case err := <-freed:
		return errors.Join(err, n.takeOver(ctx, c, p, false))
	case <-waiting.Done():
	}
	taken := n.takeOver(ctx, c, p, false)
	return errors.Join(taken, <-freed)
}

// takeOver lets the parts end what they recognize in the pod netns. It does nothing if another
// attachment of ours has the interface.
func (n *Node) takeOver(ctx context.Context, c *Call, p *Plan, recorded bool) error {
	pod, err := openPod(c.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	u := &Upstream{Call: c, Node: n, Pod: pod, Recorded: recorded}
	switch {
	case pod == nil:
	case pod.ID.Equal(n.Netns.ID) && p.Chained == nil:
		return nil // an interface of that name there is the host's own
	case pod.ID.Equal(n.Netns.ID):
		u.Pod = nil
	case p.Chained == nil:
		if other := n.recordedAs(c, pod); other != nil {
			n.LogOf(other).Warn("DEL does not touch the interface, which belongs to another container", "attachment", c.Key)
			return nil
		}
	}
	var errs []error
	for _, part := range p.Claim {
		errs = append(errs, part.TakeOver(ctx, u))
	}
	return errors.Join(errs...)
}

// recordedAs returns the record of another attachment that has the interface of c.
func (n *Node) recordedAs(c *Call, pod *netns.Netns) *ledger.Record {
	records, errs := n.Ledger.HeldIn(pod.ID)
	for _, err := range errs {
		n.Log.Warn("cannot read a record, which may be that of the interface", "err", err)
	}
	for _, r := range records {
		if r.Key != c.Key && r.IfName == c.IfName {
			return r
		}
	}
	return nil
}
