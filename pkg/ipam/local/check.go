package local

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// Check implements [ipam.Store]. It reads without a lock.
func (s *Store) Check(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) ([]netip.Prefix, error) {
	held := make([]netip.Prefix, 0, len(pools))
	for _, id := range pools {
		addr, err := s.check(ctx, owner, id)
		if err != nil {
			return nil, err
		}
		held = append(held, netip.PrefixFrom(addr, id.Prefix.Bits()))
	}
	return held, nil
}

func (s *Store) check(ctx context.Context, owner ipam.Owner, id ipam.Pool) (netip.Addr, error) {
	none := func(err error) error {
		return failure.From(err, failure.Mismatch, "pool %s", id.Prefix).Cure("delete the pod, so that it is attached again")
	}
	p, err := s.openPool(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, none(errors.New("the pool has no assigned address"))
	}
	if err != nil {
		return netip.Addr{}, err
	}
	defer p.close()
	for _, addr := range p.linksOf(owner) {
		r, err := p.read(addr)
		if err != nil {
			return netip.Addr{}, err
		}
		if r != nil && r.SetAside == "" && owner.Ends(r.owner()) {
			return addr, nil
		}
	}
	return netip.Addr{}, none(errors.New("this attachment has no address in the pool"))
}

// Allocation is an assigned address.
type Allocation struct {
	Addr netip.Addr
	// Owner is the zero Owner for an unreadable record, whose address stays taken.
	Owner ipam.Owner
}

// Allocations returns the assigned addresses of a pool, by name. It reads without a lock.
func (s *Store) Allocations(ctx context.Context, id ipam.Pool) ([]Allocation, error) {
	p, err := s.openPool(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer p.close()
	names, err := p.dir.List(jsonSuffix)
	var found []Allocation
	for _, name := range names {
		addr, ok := recordAddr(name)
		if !ok {
			continue
		}
		r, readErr := p.read(addr)
		switch {
		case readErr != nil:
			found = append(found, Allocation{Addr: addr})
		case r != nil: // a record that was set aside has no owner either
			found = append(found, Allocation{addr, r.owner()})
		}
	}
	return found, err
}

// Status implements [ipam.Store].
func (s *Store) Status(ctx context.Context, claims []ipam.Claim) error {
	for _, c := range claims {
		if err := s.status(ctx, c); err != nil {
			return failure.Wrap(err, failure.NotAvailable, "no address can be assigned")
		}
	}
	return nil
}

// status does the steps of an ADD up to the choice of an address.
func (s *Store) status(ctx context.Context, c ipam.Claim) error {
	p, err := s.openPool(ctx, c.Pool, true)
	if err != nil {
		return err
	}
	defer p.close()
	if c.SameHost != nil {
		if p.rails, err = s.openFree(ctx, p, c); err != nil {
			return err
		}
		defer p.rails.close()
	}
	if err := p.acquire(ctx); err != nil {
		return err
	}
	err = p.anyFree(c)
	var exhausted *ipam.ExhaustedError
	if errors.As(err, &exhausted) {
		if err = p.tidy(ctx); err == nil {
			err = exhaustedError(p.anyFree(c))
		}
	}
	p.end(ctx, err)
	return err
}

// anyFree returns an error unless an address is free now.
func (p *pool) anyFree(c ipam.Claim) error {
	if c.Exclusive {
		if err := p.hideForeign(c.Range); err != nil {
			return err
		}
	}
	if err := p.rails.hide(p.pages); err != nil {
		return err
	}
	for {
		addr, err := ipam.Choose(c.Range, p.pages)
		if err != nil || !p.dir.Exists(recordName(addr)) {
			return err
		}
		p.pages.take(addr)
	}
}
