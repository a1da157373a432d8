package local

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// Release implements [ipam.Store]. If pools is empty, or owner has no address in one of
// pools, Release also searches all other pools. The config may have changed since ADD, and
// an attachment that ends must not keep an address.
func (s *Store) Release(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) error {
	found, err := s.releaseIn(ctx, owner, pools)
	if found == len(pools) && len(pools) > 0 {
		return err
	}
	all, listErr := s.pools(ctx)
	others := slices.DeleteFunc(all, func(p ipam.Pool) bool { return slices.Contains(pools, p) })
	return errors.Join(err, listErr, s.release(ctx, owner, others))
}

func (s *Store) release(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) error {
	_, err := s.releaseIn(ctx, owner, pools)
	return err
}

// releaseIn returns the number of pools in which owner had an address.
func (s *Store) releaseIn(ctx context.Context, owner ipam.Owner, pools []ipam.Pool) (int, error) {
	var errs []error
	found := 0
	for _, id := range pools {
		had, err := s.releaseOne(ctx, owner, id)
		if had {
			found++
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

func (s *Store) releaseOne(ctx context.Context, owner ipam.Owner, id ipam.Pool) (bool, error) {
	p, err := s.openPool(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	if len(p.linksOf(owner)) == 0 {
		return false, nil // without the lock
	}
	if err := p.acquire(ctx); err != nil {
		return false, err
	}
	had, err := p.releaseLinked(ctx, owner)
	p.end(ctx, err)
	return had, err
}

// linksOf returns the addresses that owner's links name. It does not check the records.
func (p *pool) linksOf(owner ipam.Owner) []netip.Addr {
	var addrs []netip.Addr
	add := func(x index, key string) {
		if a, ok := x.get(key); ok && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	add(p.byAttachment, attachmentKey(owner))
	add(p.byAttachment, attachmentKey(ipam.Owner{ContainerID: owner.ContainerID}))
	add(p.byPod, podKey(owner))
	return addrs
}

// releaseLinked frees the addresses to which owner's links lead, if owner ends their
// records. It reports whether owner had such an address.
func (p *pool) releaseLinked(ctx context.Context, owner ipam.Owner) (bool, error) {
	had := false
	var errs []error
	for _, addr := range p.linksOf(owner) {
		r, err := p.read(addr)
		switch {
		case err != nil:
			errs = append(errs, err)
		case r != nil && r.SetAside == "" && owner.Ends(r.owner()):
			had = true
			errs = append(errs, p.free(ctx, r.owner(), addr))
		case r == nil || !owner.Same(r.owner()):
			errs = append(errs, p.byPod.drop(podKey(owner), addr), p.byAttachment.drop(attachmentKey(owner), addr))
		default:
			// The pod's new container has taken over the address.
			errs = append(errs, p.byAttachment.drop(attachmentKey(owner), addr))
		}
	}
	return had, errors.Join(errs...)
}

// free makes addr available again. It clears the bit first: in the map a taken address may
// look free, but a free address must not look taken. It removes the record before the
// links, because a later DEL finds the record by the links.
func (p *pool) free(ctx context.Context, owner ipam.Owner, addr netip.Addr) error {
	if err := p.pages.free(addr); err != nil {
		return err
	}
	if err := p.reserved.free(ctx, addr); err != nil {
		return err
	}
	return p.forget(owner, addr)
}

// forget removes the record, then the links to it.
func (p *pool) forget(owner ipam.Owner, addr netip.Addr) error {
	if err := p.dir.Remove(recordName(addr)); err != nil {
		return err
	}
	return errors.Join(p.byPod.drop(podKey(owner), addr), p.byAttachment.drop(attachmentKey(owner), addr))
}
