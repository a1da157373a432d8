package block

import (
	"context"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// poolOf returns the pool whose blocks a claim uses: the claim's own pool, or with sameHost
// the pool of the host parts.
func (s *Store) poolOf(c ipam.Claim) *pool {
	if c.SameHost != nil {
		return s.pool(ipam.HostPool(c.Pool))
	}
	return s.pool(c.Pool)
}

// blocksFor returns the parts of the claim's own pool that correspond to blocks of the pool
// that [Store.poolOf] returns.
func blocksFor(c ipam.Claim, blocks []netip.Prefix) []netip.Prefix {
	if c.SameHost == nil {
		return blocks
	}
	var moved []netip.Prefix
	for _, b := range blocks {
		moved = append(moved, ipam.MovePrefix(b, c.Pool.Prefix))
	}
	return moved
}

// hosts returns the claim as a claim of p's pool. With sameHost it replaces each address by
// its host part.
func (p *pool) hosts(c ipam.Claim) ipam.Claim {
	if c.SameHost == nil {
		return c
	}
	c.Range = c.Range.Moved(p.Prefix)
	if c.Want.IsValid() {
		c.Want = ipam.Move(c.Want, p.Prefix)
	}
	return c
}

// guard makes the guard of p's pool and, with sameHost, also the guard of the claim's pool.
// It returns an error if one of the two pools is used in another way.
func (p *pool) guard(ctx context.Context, c ipam.Claim) error {
	if err := api.Guard(ctx, p.client, p.Pool, p.size); err != nil || c.SameHost == nil {
		return err
	}
	return api.GuardRail(ctx, p.client, c.Pool, p.size)
}

// guardRail makes the guard of the claim's pool, and adds the pool to Rails in the node's
// file.
func (p *pool) guardRail(ctx context.Context, c ipam.Claim) error {
	return p.alone(ctx, func() error {
		f, err := p.peek(ctx)
		if err != nil || slices.Contains(f.Rails, c.Pool) { // another process was quicker
			return err
		}
		if err := api.GuardRail(ctx, p.client, c.Pool, p.size); err != nil {
			return err
		}
		return p.change(ctx, func(f *file) { f.Rails = append(f.Rails, c.Pool) })
	})
}

// entries returns the entries for the IPPool of a block, by key. With sameHost one entry
// has all interfaces of a pod that have the same host part.
func (p *pool) entries(ctx context.Context, rails []ipam.Pool, block netip.Prefix) (map[string]api.Entry, error) {
	if p.Node != ipam.HostNode {
		rails = []ipam.Pool{p.Pool}
	}
	merged := map[string]api.Entry{}
	for _, pool := range rails {
		all, err := p.local.Allocations(ctx, pool)
		if err != nil {
			return nil, err
		}
		part := block
		if p.Node == ipam.HostNode {
			part = ipam.MovePrefix(block, pool.Prefix)
		}
		for key, e := range entriesOf(all, part) {
			if first, some := merged[key]; some {
				first.IfName += "," + e.IfName
				e = first
			}
			merged[key] = e
		}
	}
	return merged, nil
}
