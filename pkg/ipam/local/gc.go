package local

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// GC implements [ipam.Store]. It reads every pool of the node. Records that are younger
// than the call stay, because the runtime may have made its list before these records.
func (s *Store) GC(ctx context.Context, network string, _ []ipam.Pool, valid []ipam.Attachment) error {
	keep := make(map[ipam.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	began := s.now()
	stale := func(r *record) bool {
		return r != nil && r.SetAside == "" && r.Network == network && !r.Since.After(began) &&
			!keep[ipam.Attachment{ContainerID: r.ContainerID, IfName: r.IfName}]
	}
	pools, err := s.pools(ctx)
	errs := []error{err}
	for _, id := range pools {
		errs = append(errs, s.gcPool(ctx, id, stale))
	}
	return errors.Join(errs...)
}

// gcPool reads the records without the lock, so that ADDs can go on. If some records are
// stale, it takes the lock and reads each of them again before it frees the address.
func (s *Store) gcPool(ctx context.Context, id ipam.Pool, stale func(*record) bool) error {
	p, err := s.openPool(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	names, err := p.dir.List(jsonSuffix)
	errs := []error{err}
	var suspects []netip.Addr
	for _, name := range names {
		addr, ok := recordAddr(name)
		if !ok {
			continue
		}
		if r, err := p.read(addr); err != nil || stale(r) {
			suspects = append(suspects, addr)
		}
	}
	if len(suspects) == 0 {
		return errors.Join(errs...)
	}
	if err := p.acquire(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	var freeErrs []error
	for _, addr := range suspects {
		r, err := p.read(addr)
		if stale(r) {
			err = p.free(ctx, r.owner(), addr)
		}
		freeErrs = append(freeErrs, err)
	}
	err = errors.Join(freeErrs...)
	p.end(ctx, err)
	return errors.Join(append(errs, err)...)
}
