package attachment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// GC sweeps, ends the attachments of the configuration's network that are not in the
// runtime's list, and passes the call to the IPAM plugin. If the runtime passes no list, GC only
// sweeps, because host-local (plugins v1.10.0) mistakes a missing list for an empty list and frees
// the addresses of all pods. After a failure GC continues, and it joins the errors.
func (n *Node) GC(ctx context.Context, c *Call) error {
	n.CNIPath = c.Path
	var errs []error
	for _, s := range n.Sweep(ctx) {
		errs = append(errs, s.Err)
	}
	if valid, listed := c.Conf.Valid(); listed {
		errs = append(errs, n.endInvalid(ctx, c, valid), n.order.Addresses.Pass(ctx, n, c, "GC"))
	}
	return errors.Join(errs...)
}

func (n *Node) endInvalid(ctx context.Context, c *Call, valid []types.GCAttachment) error {
	records, errs := n.Ledger.List()
	for _, r := range records {
		if r.Network != c.Conf.Name || r.Plugin != c.Conf.Type || !r.HostNetns.Equal(n.Netns.ID) {
			continue
		}
		if slices.Contains(valid, types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName}) {
			continue
		}
		if err := n.endIfUnchanged(ctx, r, returnWait); err != nil {
			errs = append(errs, fmt.Errorf("attachment %s: %w", r.Key, err))
		}
	}
	return errors.Join(errs...)
}

// Status returns the reason why an ADD of this network cannot work now, or nil.
func (n *Node) Status(ctx context.Context, c *Call, p *Plan) error {
	for _, part := range p.Claim {
		if err := part.Available(n); err != nil {
			kind := failure.NotAvailable
			if failure.KindOf(err) == failure.Limited {
				kind = failure.Limited
			}
			return failure.Wrap(err, kind, "network %q", c.Conf.Name)
		}
	}
	if p.Chained != nil {
		return nil
	}
	return n.order.Addresses.Pass(ctx, n, c, "STATUS")
}
