package attach

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Del ends an attachment. It needs nothing but its record; where there is none
// (never attached, ended already, corrupt, or made by upstream's plugin)
// the provision takes back what it can recognise without one.
func (n *Node) Del(ctx context.Context, c *Call, p Provision) error {
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := n.Ledger.Get(c.Key)
	switch {
	case err == nil:
		believed, err := n.settleBelieved(ctx, r)
		switch {
		case !believed && err != nil, believed && !r.OnlyRDMA():
			return err
		case err != nil:
			// Upstream's plugin made the interface, ours in the chain added RDMA.
			return errors.Join(err, n.takeBackUnrecorded(ctx, c, p), c.freeUnrecorded(ctx))
		}
	case errors.Is(err, ledger.ErrNoRecord):
	case cnierr.Code(err) == cnierr.BadRecord && !ledger.IsNewer(err):
		n.Log.Warn("going by the interface itself", "err", err)
	default:
		return err
	}
	return errors.Join(n.takeBackUnrecorded(ctx, c, p), c.freeUnrecorded(ctx))
}

// settleBelieved settles an attachment for its own DEL. It keeps a record that was
// edited aside, and says false: what there is to end is known by the interface.
func (n *Node) settleBelieved(ctx context.Context, r *ledger.Record) (believed bool, err error) {
	if err = n.settle(ctx, r, homeWait); !errors.Is(err, errUnbelieved) {
		return true, err
	}
	kept, err := n.Ledger.SetAside(r.Key)
	if err == nil {
		n.Log.Warn("the record was edited; going by the interface itself", "kept", kept)
	}
	return false, err
}

func (n *Node) takeBackUnrecorded(ctx context.Context, c *Call, p Provision) error {
	pod, err := link.OpenNetns(c.Netns)
	if c.Netns == "" || errors.Is(err, link.ErrNoNetns) {
		return p.TakeBackUnrecorded(ctx, n, c, nil)
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod.ID.Equal(n.Host.Netns.ID) {
		return nil // whatever has that name there is the host's own
	}
	if other := n.recordedAs(c, pod); other != nil {
		n.log(other).Warn("a DEL of another container names this interface; it stays", "of", c.Key)
		return nil
	}
	return p.TakeBackUnrecorded(ctx, n, c, pod)
}

// recordedAs gives the record of another attachment that has the interface of c.
func (n *Node) recordedAs(c *Call, pod *link.Netns) *ledger.Record {
	records, errs := n.Ledger.List()
	for _, err := range errs {
		n.Log.Warn("a record cannot be read: it may be of the interface", "err", err)
	}
	for _, r := range records {
		if r.Key != c.Key && r.IfName == c.IfName && r.Netns.Equal(pod.ID) && r.Phase != ledger.Freeing {
			return r
		}
	}
	return nil
}

// freeUnrecorded frees addresses by what the runtime says now.
func (c *Call) freeUnrecorded(ctx context.Context) error {
	err := c.ipamVerb(ctx, "DEL")
	if errors.Is(err, errNoPlugin) {
		return nil // nothing was ever allocated through a plugin that is not there
	}
	return err
}
