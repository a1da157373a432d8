package local

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// Allocate implements [ipam.Store].
func (s *Store) Allocate(ctx context.Context, owner ipam.Owner, claims []ipam.Claim) ([]netip.Prefix, error) {
	var got []netip.Prefix
	var pools []ipam.Pool
	for _, c := range claims {
		addr, err := s.allocate(ctx, owner, c)
		if err != nil {
			ctx, cancel := afterwards(ctx)
			defer cancel()
			return nil, errors.Join(err, s.release(ctx, owner, pools))
		}
		pools = append(pools, c.Pool)
		got = append(got, netip.PrefixFrom(addr, c.Pool.Prefix.Bits()))
	}
	return got, nil
}

func (s *Store) allocate(ctx context.Context, owner ipam.Owner, c ipam.Claim) (netip.Addr, error) {
	if c.SameHost != nil {
		return s.allocateSameHost(ctx, owner, c)
	}
	p, err := s.openPool(ctx, c.Pool, true)
	if err != nil {
		return netip.Addr{}, err
	}
	defer p.close()
	return p.alone(ctx, func() (netip.Addr, error) { return p.allocate(ctx, owner, c) })
}

// allocate assigns owner an address, or returns the address that owner already has. The
// caller holds the lock.
func (p *pool) allocate(ctx context.Context, owner ipam.Owner, c ipam.Claim) (netip.Addr, error) {
	held, r, err := p.heldBy(owner)
	if err != nil {
		return netip.Addr{}, err
	}
	if r != nil {
		if c.Want.IsValid() && c.Want != held {
			return netip.Addr{}, failure.New(failure.IPAM, "%s asks for %s and already holds %s", owner.PodRef, c.Want, held).
				Cure("end the attachment first, or ask for the same address")
		}
		kept, err := p.renew(ctx, owner, held, r, c)
		if err != nil || kept {
			return held, err
		}
	}
	if c.Want.IsValid() {
		return c.Want, p.takeWanted(ctx, owner, c)
	}
	return p.takeFree(ctx, owner, c)
}

// heldBy returns the address that owner has in this pool and its record, or nil.
func (p *pool) heldBy(owner ipam.Owner) (netip.Addr, *record, error) {
	for _, link := range []struct {
		index
		key string
	}{{p.byPod, podKey(owner)}, {p.byAttachment, attachmentKey(owner)}} {
		addr, ok := link.get(link.key)
		if !ok {
			continue
		}
		r, err := p.read(addr)
		if err != nil {
			return netip.Addr{}, nil, err
		}
		if r != nil && owner.Same(r.owner()) {
			return addr, r, nil
		}
	}
	return netip.Addr{}, nil, nil
}

// renew writes owner into r, the record of addr that owner already has. owner's container
// may be a new one. renew returns false if another pool has reserved the address meanwhile.
// Then the record is gone.
func (p *pool) renew(ctx context.Context, owner ipam.Owner, addr netip.Addr, r *record, c ipam.Claim) (bool, error) {
	if was := r.owner(); was != owner {
		if err := p.link(owner, addr); err != nil {
			return false, err
		}
		if err := p.writeRecord(addr, newRecord(netip.PrefixFrom(addr, p.id.Prefix.Bits()), owner, r.Since)); err != nil {
			return false, err
		}
		if err := p.unlinkOther(was, owner, addr); err != nil {
			return false, err
		}
	}
	if c.Exclusive {
		if ok, err := p.reserved.take(ctx, addr); err != nil || !ok {
			return false, errors.Join(err, p.pages.free(addr), p.forget(owner, addr))
		}
	}
	p.pages.take(addr)
	return true, nil
}

// takeWanted takes the requested address.
func (p *pool) takeWanted(ctx context.Context, owner ipam.Owner, c ipam.Claim) error {
	refuse := func(why string) error {
		return failure.New(failure.IPAM, "cannot give %s the requested address %s: %s", owner.PodRef, c.Want, why).
			Cure("ask for another address, or let the pool choose")
	}
	if why := c.Range.Why(c.Want); why != "" {
		return refuse(why)
	}
	switch r, err := p.read(c.Want); {
	case err != nil || r != nil && r.SetAside != "":
		return refuse("it is taken")
	case r != nil:
		return refuse(r.PodRef + " holds it")
	}
	taken, err := p.take(ctx, owner, c.Want, c.Exclusive)
	if err == nil && !taken {
		return refuse("another pool of the same address space holds it")
	}
	return err
}

// foreignChecks is a number of chosen addresses that turn out to be taken in other pools.
// After so many of them, all addresses that are taken in other pools are read at once.
const foreignChecks = 8

// lastFile has the address that was handed out last, for claims that rotate. The file may
// be lost or wrong. Then the next claim gets another free address.
const lastFile = "last"

// last returns the address in lastFile, or the zero Addr if there is none.
func (p *pool) last() netip.Addr {
	data, err := p.dir.Read(lastFile)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(strings.TrimSpace(string(data)))
	return addr
}

// takeFree takes the free address that the claim asks for: the lowest one, or with Rotate
// the next one after the last.
func (p *pool) takeFree(ctx context.Context, owner ipam.Owner, c ipam.Claim) (netip.Addr, error) {
	var last netip.Addr
	if c.Rotate {
		last = p.last()
	}
	tidied := false
	for foreign := 0; ; {
		if err := ctx.Err(); err != nil {
			return netip.Addr{}, failure.From(err, failure.TryAgain, "choosing an address in %s", p.id.Prefix).Cure("try again")
		}
		addr, err := ipam.ChooseAfter(c.Range, p.pages, last)
		var exhausted *ipam.ExhaustedError
		if errors.As(err, &exhausted) && !tidied {
			// The map may be wrong after all, if someone has edited the files.
			tidied, foreign = true, 0
			if err := p.tidy(ctx); err != nil {
				return netip.Addr{}, err
			}
			continue
		}
		if err != nil {
			return netip.Addr{}, exhaustedError(err)
		}
		if p.dir.Exists(recordName(addr)) {
			p.pages.take(addr)
			continue
		}
		taken := false
		if !p.rails.have(addr, "") {
			taken, err = p.take(ctx, owner, addr, c.Exclusive)
		}
		if taken && c.Rotate {
			_ = p.dir.Write(lastFile, []byte(addr.String()+"\n"))
		}
		if err != nil || taken {
			return addr, err
		}
		if err := p.pages.hide(addr); err != nil {
			return netip.Addr{}, err
		}
		if foreign++; foreign == foreignChecks {
			if err := errors.Join(p.hideForeign(c.Range), p.rails.hide(p.pages)); err != nil {
				return netip.Addr{}, err
			}
		}
	}
}

func exhaustedError(err error) error {
	return failure.From(err, failure.IPAM, "").Cure("end attachments that are not needed, or widen the range")
}

// hideForeign hides all reserved addresses in the range. This includes the addresses that
// this pool has reserved, which are taken anyway. hideForeign reads only the names of the
// reservations, because reading each reservation would cost ten times as much.
func (p *pool) hideForeign(r *ipam.Range) error {
	addrs, err := p.reserved.addrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if !r.Prefix().Contains(a) {
			continue
		}
		if err := p.pages.hide(a); err != nil {
			return err
		}
	}
	return nil
}

// take writes a record of addr for owner. addr must not have a record. If another pool
// holds the address, take returns false and leaves nothing behind.
func (p *pool) take(ctx context.Context, owner ipam.Owner, addr netip.Addr, exclusive bool) (bool, error) {
	if exclusive && p.reserved.elsewhere(addr) {
		return false, nil
	}
	if err := p.link(owner, addr); err != nil {
		return false, err
	}
	r := newRecord(netip.PrefixFrom(addr, p.id.Prefix.Bits()), owner, p.store.now())
	if err := p.writeRecord(addr, r); err != nil {
		return false, err
	}
	if exclusive {
		if ok, err := p.reserved.take(ctx, addr); err != nil || !ok {
			return false, errors.Join(err, p.forget(owner, addr))
		}
	}
	p.pages.take(addr)
	return true, nil
}

func (p *pool) link(owner ipam.Owner, addr netip.Addr) error {
	if err := p.byPod.set(podKey(owner), addr); err != nil {
		return err
	}
	return p.byAttachment.set(attachmentKey(owner), addr)
}

// unlinkOther removes the links of the former owner, was, that are not links of owner, too.
func (p *pool) unlinkOther(was, owner ipam.Owner, addr netip.Addr) error {
	var err error
	if podKey(was) != podKey(owner) {
		err = p.byPod.drop(podKey(was), addr)
	}
	if attachmentKey(was) != attachmentKey(owner) {
		err = errors.Join(err, p.byAttachment.drop(attachmentKey(was), addr))
	}
	return err
}
