package store

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	hostsDir   = "hosts"
	hostLock   = "lock"
	hostSuffix = ".host"
	// hostTries is how often an ADD chooses another host part after one was taken by another
	// node, or is reserved on a rail.
	hostTries = 16
	// hostSpread is the number of host parts above the lowest free one among which an ADD
	// chooses. whereabouts and other nodes take the lowest address of each pool: they would
	// often be quicker on one of the rails.
	hostSpread = 64
	// hostSpreadRotating is that number with "allocation": "rotate".
	hostSpreadRotating = 1 << 16
)

// choice is the file of a host part that an ADD is about to take on one rail. It counts while
// its process lives. After that, the entry in the pool counts.
type choice struct {
	Host  ipam.Pool  `json:"host"` // the [ipam.HostPool]
	Addr  netip.Addr `json:"address"`
	Owner ipam.Owner `json:"owner"`
}

// submitSameHost submits a, the ask for c's address, with the host part that the container has
// on other rails. If it has none, submitSameHost chooses one that is free on all rails.
func (s *Store) submitSameHost(ctx context.Context, c ipam.Claim, a *ask) (answer, error) {
	for try := 0; ; {
		h, err := s.chooseHost(ctx, c, a)
		if api.IsTransient(err) && !a.canceled() && wait.For(ctx, againAfter/2+rand.N(againAfter)) == nil {
			continue // as an ask does
		}
		if err != nil {
			return answer{}, err
		}
		if h.others && c.Want.IsValid() && c.Want != h.addr {
			h.forget()
			return answer{}, ipam.WantsOtherHost(a.Owner, c.Want, h.addr)
		}
		a.Want = h.addr
		given, err := s.submit(ctx, c.Pool, a)
		h.forget()
		switch {
		case failure.KindOf(err) != failure.IPAM:
			return given, err
		case h.others:
			return given, ipam.HostTaken(h.addr, err)
		case c.Want.IsValid() || try == hostTries:
			return given, err
		}
		try++ // another node took it
	}
}

// hostChoice is the address that an ADD is to request.
type hostChoice struct {
	addr   netip.Addr
	others bool            // the container has its host part on another rail, or is about to
	posted *statefile.Lock // of the choice's file, nil if there is none
	dir    *statefile.Dir
}

// forget removes the choice's file: the entry exists, or the ADD has failed.
func (h *hostChoice) forget() {
	if h.posted != nil {
		_ = h.posted.UnlockAndRemove()
		_ = h.dir.Close()
	}
}

// chooseHost returns the address that an ADD is to request, with a file by which the node's
// other ADDs know it.
func (s *Store) chooseHost(ctx context.Context, c ipam.Claim, a *ask) (*hostChoice, error) {
	if addr, err := s.notedHost(c, a); err != nil || addr.IsValid() {
		return &hostChoice{addr: addr, others: true}, err
	}
	dir, err := s.dir.Sub(hostsDir)
	if err != nil {
		return nil, err
	}
	h := &hostChoice{dir: dir}
	waiting, stop := a.patience(ctx)
	lock, err := dir.Lock(waiting, hostLock)
	stop()
	if err == nil {
		err = s.chooseAlone(ctx, c, a, h)
		_ = lock.Unlock()
	}
	if err != nil || h.posted == nil {
		_ = dir.Close()
	}
	return h, err
}

// chooseAlone is [Store.chooseHost] with the lock.
func (s *Store) chooseAlone(ctx context.Context, c ipam.Claim, a *ask, h *hostChoice) error {
	var err error
	if h.addr, err = s.notedHost(c, a); err != nil || h.addr.IsValid() {
		h.others = true
		return err
	}
	// Before the pools: a choice that is gone by then is an entry.
	chosen, err := choices(h.dir, ipam.HostPool(c.Pool))
	if err != nil {
		return err
	}
	taken := &ipam.Set{}
	for _, other := range chosen {
		addr := ipam.Move(other.Addr, c.Pool.Prefix)
		taken.Add(addr)
		if other.Owner.ContainerID == a.Owner.ContainerID {
			h.addr, h.others = addr, true
		}
	}
	if !h.others {
		r := &railChoice{s: s, claim: c, ask: a, taken: taken}
		if h.addr, h.others, err = r.choose(ctx); err != nil {
			return err
		}
	}
	own := choice{Host: ipam.HostPool(c.Pool), Addr: ipam.Move(h.addr, ipam.HostPool(c.Pool).Prefix), Owner: a.Owner}
	data, err := json.Marshal(own)
	if err == nil {
		h.posted, err = h.dir.Post(statefile.Name(a.Owner.ContainerID, a.Owner.IfName, own.Addr.String())+hostSuffix, data)
	}
	return err
}

// notedHost returns the address with the host part that the container has on any rail, from
// the node's notes, the zero Addr if there is no note.
func (s *Store) notedHost(c ipam.Claim, a *ask) (netip.Addr, error) {
	all, err := s.notes.list(statefile.Name(a.Owner.ContainerID) + "@")
	if err != nil {
		return netip.Addr{}, err
	}
	var host netip.Addr
	for _, n := range all {
		if n.Owner.ContainerID != a.Owner.ContainerID || !c.IsRail(n.Pool) {
			continue
		}
		if n.Pool == c.Pool && n.Owner.IfName != a.Owner.IfName {
			return host, ipam.SecondOnRail(a.Owner, n.Owner.IfName, n.Addr)
		}
		host = ipam.Move(n.Addr, c.Pool.Prefix)
	}
	return host, nil
}

// forgetChoices removes the files that killed ADDs of owner's attachment have left.
func (s *Store) forgetChoices(owner ipam.Owner) error {
	dir, err := statefile.OpenExisting(filepath.Join(s.dir.Path(), hostsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.List(hostSuffix)
	for _, name := range names {
		if strings.HasPrefix(name, attachmentPrefix(owner)) {
			err = errors.Join(err, dir.Remove(name))
		}
	}
	return err
}

// choices returns the choices of live processes for a pool of host parts. It removes those of
// dead ones.
func choices(dir *statefile.Dir, host ipam.Pool) ([]choice, error) {
	names, err := dir.List(hostSuffix)
	if err != nil {
		return nil, err
	}
	var all []choice
	for _, name := range names {
		held, err := dir.Held(name)
		if err != nil {
			return nil, err
		}
		if !held {
			if err := dir.Remove(name); err != nil {
				return nil, err
			}
			continue
		}
		var c choice
		data, err := dir.Read(name)
		if err == nil && json.Unmarshal(data, &c) == nil && c.Host == host {
			all = append(all, c)
		}
	}
	return all, nil
}

// railChoice chooses a host part that is free on all rails.
type railChoice struct {
	s     *Store
	claim ipam.Claim
	ask   *ask
	taken *ipam.Set // in the claim's pool: all host parts that are taken on some rail
	// others has those of taken that other pods than the ask's have.
	others ipam.Set
}

// choose reads the pools of all rails. It returns an address of the claim's pool, and reports
// whether the container already has its host part.
func (r *railChoice) choose(ctx context.Context) (addr netip.Addr, had bool, err error) {
	states, err := r.read(ctx)
	if err != nil {
		return addr, false, err
	}
	own := r.claim.Pool.Prefix
	var former netip.Addr // of the pod's former container, in the claim's pool
	for _, state := range states {
		for key, e := range state.Entries {
			there, err := state.Addr(key)
			if err != nil || !state.Prefix.Contains(there) {
				continue
			}
			here := ipam.Move(there, own)
			r.taken.Add(here)
			switch {
			case e.PodRef == "" || e.PodRef != r.ask.Owner.PodRef:
				r.others.Add(here)
			case e.ContainerID == r.ask.Owner.ContainerID && (state.Prefix != own || e.IfName == r.ask.Owner.IfName):
				addr, had = here, true
			case e.ContainerID == r.ask.Owner.ContainerID:
				return addr, false, ipam.SecondOnRail(r.ask.Owner, e.IfName, there)
			case state.Prefix == own && r.ask.Owner.Same(e.Owner()):
				former = there
			}
		}
	}
	switch want := r.claim.Want; {
	case had:
		return addr, true, nil
	case want.IsValid() && r.others.Has(want):
		return addr, false, failure.New(failure.IPAM, "cannot give %s the requested address %s: its host part is taken", r.ask.Owner.PodRef, want).
			Cure("ask for another address, or let the pool choose")
	case want.IsValid():
		return want, false, nil
	case former.IsValid() && r.claim.Range.Why(former) == "" && !r.others.Has(former):
		return former, false, nil
	}
	addr, err = r.free(ctx)
	return addr, false, err
}

// read returns the pools of all rails.
func (r *railChoice) read(ctx context.Context) ([]*api.PoolState, error) {
	var mu sync.Mutex
	var states []*api.PoolState
	all := api.NewGroup()
	for _, pool := range r.claim.OnRails() {
		all.Go(func() error {
			state, err := r.s.readPool(ctx, pool)
			if err == nil {
				err = state.Guarded()
			}
			mu.Lock()
			defer mu.Unlock()
			states = append(states, state)
			return err
		})
	}
	return states, all.Wait()
}

// free returns an address whose host part nobody has on a rail.
func (r *railChoice) free(ctx context.Context) (netip.Addr, error) {
	for range hostTries {
		addr, err := ipam.Choose(r.claim.Range, r.taken)
		if err != nil {
			return addr, failure.From(err, failure.IPAM, "no host part is free on all rails").Cure("end attachments that are not needed, or widen the ranges")
		}
		addr = r.above(addr)
		reserved, err := r.reserved(ctx, addr)
		if err != nil || !reserved {
			return addr, err
		}
		r.taken.Add(addr)
	}
	return netip.Addr{}, failure.New(failure.TryAgain, "other pools of the address space hold the host parts that were tried").
		Cure("try again, or give the network another range or network_name")
}

// above returns a free address at a random distance above the lowest one, or the lowest one.
func (r *railChoice) above(lowest netip.Addr) netip.Addr {
	most := hostSpread
	if r.claim.Rotate {
		most = hostSpreadRotating
	}
	for spread := most; spread > 1; spread /= 4 {
		from := lowest
		for range rand.IntN(spread) {
			if next := from.Next(); next.IsValid() {
				from = next
			}
		}
		if addr, err := ipam.ChooseFrom(r.claim.Range, r.taken, from); err == nil {
			return addr
		}
	}
	return lowest
}

// reserved reports whether another pod has reserved the address on a rail.
func (r *railChoice) reserved(ctx context.Context, addr netip.Addr) (bool, error) {
	if !r.claim.Exclusive {
		return false, nil
	}
	var mu sync.Mutex
	found := false
	all := api.NewGroup()
	for _, pool := range r.claim.OnRails() {
		all.Go(func() error {
			there, err := api.ReadReservation(ctx, r.s.client, pool.ReservationName(ipam.Move(addr, pool.Prefix)))
			mu.Lock()
			defer mu.Unlock()
			found = found || there != nil && there.Spec.PodRef != r.ask.Owner.PodRef
			return err
		})
	}
	return found, all.Wait()
}
