package local

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// hostLock is a lock of an address space. A process holds it from the choice of a host part
// until the record of the first address with this host part exists. It is taken before the
// lock of a pool.
const hostLock = "host.lock"

// rails are the pools of the other rails for a claim with SameHost. Only the records in
// them count, so a process that is killed leaves no choice of a host part behind.
type rails struct {
	prefix netip.Prefix
	open   []*pool // the pools, without those that have never had an address
	// others are the networks of the other rails. reserved are the reservations of the
	// address space, or nil if reservations do not count.
	others   []netip.Prefix
	reserved *reservations
}

// openFree opens the pools of the other rails for the choice of a host part in p.
func (s *Store) openFree(ctx context.Context, p *pool, c ipam.Claim) (*rails, error) {
	r, err := s.openRails(ctx, c)
	if err == nil && c.Exclusive {
		r.reserved = p.reserved
	}
	return r, err
}

// openRails opens the pools of the other rails for reading.
func (s *Store) openRails(ctx context.Context, c ipam.Claim) (*rails, error) {
	r := &rails{prefix: c.Pool.Prefix}
	for _, id := range c.OnRails() {
		if id.Prefix == r.prefix {
			continue
		}
		r.others = append(r.others, id.Prefix)
		p, err := s.openPool(ctx, id, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.close()
			return nil, err
		}
		r.open = append(r.open, p)
	}
	return r, nil
}

func (r *rails) close() {
	for _, p := range r.open {
		p.close()
	}
}

// allocateSameHost assigns owner an address with the host part that its container has on
// the other rails. If the container has none yet, allocateSameHost chooses a host part that
// is free on all rails.
func (s *Store) allocateSameHost(ctx context.Context, owner ipam.Owner, c ipam.Claim) (netip.Addr, error) {
	p, err := s.openPool(ctx, c.Pool, true)
	if err != nil {
		return netip.Addr{}, err
	}
	defer p.close()
	addr, err := s.withHost(ctx, p, owner, c)
	if addr.IsValid() || err != nil {
		return addr, err
	}
	lock, err := p.reserved.space.Lock(ctx, hostLock)
	if err != nil {
		return netip.Addr{}, err
	}
	defer release(lock)
	// The ADD of another rail may have chosen a host part meanwhile.
	addr, err = s.withHost(ctx, p, owner, c)
	if addr.IsValid() || err != nil {
		return addr, err
	}
	if p.rails, err = s.openFree(ctx, p, c); err != nil {
		return netip.Addr{}, err
	}
	defer p.rails.close()
	return p.alone(ctx, func() (netip.Addr, error) {
		if err := p.giveUpUnless(ctx, owner, func(held netip.Addr) bool { return c.Range.Why(held) == "" && !p.rails.have(held, owner.PodRef) }); err != nil {
			return netip.Addr{}, err
		}
		if c.Want.IsValid() && p.rails.have(c.Want, owner.PodRef) {
			return netip.Addr{}, failure.New(failure.IPAM, "cannot give %s the requested address %s: its host part is taken on another rail",
				owner.PodRef, c.Want).
				Cure("ask for another address, or let the pool choose")
		}
		return p.allocate(ctx, owner, c)
	})
}

// withHost assigns owner the address with the host part that its container has on other
// rails. It returns the zero Addr if the container has no host part yet.
func (s *Store) withHost(ctx context.Context, p *pool, owner ipam.Owner, c ipam.Claim) (netip.Addr, error) {
	others, err := s.openRails(ctx, c)
	if err != nil {
		return netip.Addr{}, err
	}
	defer others.close()
	host, err := others.hostOf(p, owner)
	if err != nil || !host.IsValid() {
		return netip.Addr{}, err
	}
	if c.Want.IsValid() && c.Want != host {
		return netip.Addr{}, ipam.WantsOtherHost(owner, c.Want, host)
	}
	c.Want = host
	addr, err := p.alone(ctx, func() (netip.Addr, error) {
		if err := p.giveUpUnless(ctx, owner, func(held netip.Addr) bool { return held == host }); err != nil {
			return netip.Addr{}, err
		}
		return p.allocate(ctx, owner, c)
	})
	if refusal(err) {
		err = ipam.HostTaken(host, err)
	}
	return addr, err
}

// alone calls do with the pool's lock.
func (p *pool) alone(ctx context.Context, do func() (netip.Addr, error)) (netip.Addr, error) {
	if err := p.acquire(ctx); err != nil {
		return netip.Addr{}, err
	}
	defer p.unlock()
	addr, err := do()
	p.end(ctx, err)
	return addr, err
}

// giveUpUnless frees the address that a former container of owner's pod has, unless keep
// returns true for that address.
func (p *pool) giveUpUnless(ctx context.Context, owner ipam.Owner, keep func(held netip.Addr) bool) error {
	held, r, err := p.heldBy(owner)
	if err != nil || r == nil || keep(held) || r.ContainerID == owner.ContainerID {
		return err
	}
	return p.free(ctx, r.owner(), held)
}

// hostOf returns the address in the pool self with the host part that owner's container has
// on any rail. It returns the zero Addr if the container has no address on a rail. It returns
// an error if another interface of the container has an address on self's rail. It reads
// without a lock.
func (r *rails) hostOf(self *pool, owner ipam.Owner) (netip.Addr, error) {
	var host netip.Addr
	for _, p := range append([]*pool{self}, r.open...) {
		held, err := p.heldByContainer(owner.ContainerID)
		if err != nil {
			return host, err
		}
		for addr, ifName := range held {
			if p == self && ifName != owner.IfName {
				return host, ipam.SecondOnRail(owner, ifName, addr)
			}
			host = ipam.Move(addr, r.prefix)
		}
	}
	return host, nil
}

// heldByContainer returns the addresses of a container, with the interface that has each of
// them. It skips records that cannot be read, because they do not show whose they are.
func (p *pool) heldByContainer(id string) (map[netip.Addr]string, error) {
	names, err := entries(p.byAttachment.dir)
	if err != nil {
		return nil, err
	}
	const maxName = 100 // the name of a link may be cut off after this
	prefix := statefile.Name(id)
	prefix = prefix[:min(len(prefix), maxName)]
	held := map[netip.Addr]string{}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		addr, ok := p.byAttachment.get(name)
		if !ok {
			continue
		}
		data, err := p.dir.Read(recordName(addr))
		if err != nil {
			continue
		}
		if r, err := parseRecord(data, addr); err == nil && r.ContainerID == id {
			held[addr] = r.IfName
		}
	}
	return held, nil
}

// have reports whether an address with addr's host part is taken on another rail. Addresses
// of the pod podRef do not count. If podRef is "", all addresses count.
func (r *rails) have(addr netip.Addr, podRef string) bool {
	if r == nil {
		return false
	}
	if r.reserved != nil { // the address may be reserved by a pool that belongs to no rail
		for _, rail := range r.others {
			reserved := reservations{space: r.reserved.space, dir: r.reserved.dir, pool: poolDir(rail)}
			if reserved.elsewhere(ipam.Move(addr, rail)) {
				return true
			}
		}
	}
	for _, p := range r.open {
		moved := ipam.Move(addr, p.id.Prefix)
		if !p.dir.Exists(recordName(moved)) {
			continue
		}
		if podRef == "" {
			return true
		}
		data, err := p.dir.Read(recordName(moved))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// A record that cannot be read counts as another pod's.
		if held, err := parseRecord(data, moved); err != nil || held.PodRef != podRef {
			return true
		}
	}
	return false
}

// hide hides the host parts that are taken on other rails from the choices of this call.
func (r *rails) hide(m *pages) error {
	if r == nil {
		return nil
	}
	if r.reserved != nil {
		addrs, err := r.reserved.addrs()
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if !slices.ContainsFunc(r.others, func(rail netip.Prefix) bool { return rail.Contains(addr) }) {
				continue
			}
			if err := m.hide(ipam.Move(addr, r.prefix)); err != nil {
				return err
			}
		}
	}
	for _, p := range r.open {
		names, err := p.dir.List(jsonSuffix)
		if err != nil {
			return err
		}
		for _, name := range names {
			addr, ok := recordAddr(name)
			if !ok {
				continue
			}
			if err := m.hide(ipam.Move(addr, r.prefix)); err != nil {
				return err
			}
		}
	}
	return nil
}
