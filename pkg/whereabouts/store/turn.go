package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// largestPool is what one object may have as JSON, in bytes: etcd refuses
	// a request of 1.5 MiB, and some of that is the server's own.
	largestPool = 1<<20 + 1<<19 - 24<<10
	// manyEntries is from when on the server is kept from noting who wrote each
	// entry (metadata.managedFields, for server-side apply, which nobody uses on
	// pools): with 2500 entries that is three quarters of the time of a patch,
	// and a quarter of the object.
	manyEntries = 50
	// foreignLooks is how many addresses may turn out to be reserved by others
	// before all reservations are listed at once.
	foreignLooks = 3
)

// turn is a leader's work: what several processes ask of one pool.
type turn struct {
	s    *Store
	pool ipam.Pool
	asks []*pending
	own  *pending

	hidden ipam.Set // addresses that others have reserved
	listed bool     // hidden has all of them
}

// lead carries asks out, and what the journal has for the pool.
func (s *Store) lead(ctx context.Context, pool ipam.Pool, own *pending, asks []*pending) error {
	t := &turn{s: s, pool: pool, own: own}
	t.admit(append(asks, s.journalled(pool, asks)...))
	err := t.run(ctx)
	if err != nil && (!api.IsTransient(err) || ctx.Err() != nil) {
		for _, p := range t.asks {
			if !p.answered && t.concerns(p, err) {
				p.settle(netip.Addr{}, err)
			}
		}
	}
	for _, p := range t.asks {
		if p.journalled != "" && p.answered && p.err == nil && p.answer.Deferred == "" {
			s.warnIf(s.journal.drop(p.journalled))
			s.formerly(p.Kubeconfig, p.Owner, func(all notes, n *note) {
				if n.Pool == pool {
					s.warnIf(all.drop(p.Owner, pool.Name()))
				}
			})
		}
	}
	return err
}

// admit makes asks part of the turn.
func (t *turn) admit(asks []*pending) {
	for _, p := range asks {
		var err error
		switch {
		case p.nothing():
			p.settle(netip.Addr{}, nil)
		case p.Range == nil && p.Note == nil:
			p.Note = t.s.notes.get(p.Owner, t.pool.Name())
		case p.Range != nil:
			if p.rng, err = ipam.NewRange(*p.Range); err != nil {
				p.settle(netip.Addr{}, err)
			}
		}
	}
	t.asks = append(t.asks, asks...)
}

// journalled gives the journal's asks for the pool. What it has of an
// attachment that now wants an address is forgotten: it would take away what
// that gets.
func (s *Store) journalled(pool ipam.Pool, asks []*pending) []*pending {
	var kept []*pending
	for _, p := range s.journal.pending(s.client, pool) {
		wanted := slices.ContainsFunc(asks, func(q *pending) bool {
			return q.Range != nil && q.Owner.ContainerID == p.Owner.ContainerID && q.Owner.IfName == p.Owner.IfName
		})
		if wanted {
			s.warnIf(s.journal.drop(p.journalled))
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

// concerns reports whether err, which ended the turn, is p's error as well. The
// server may admit asks with other credentials than the leader's.
func (t *turn) concerns(p *pending, err error) bool {
	switch {
	case p == t.own:
		return true
	case api.IsTransient(err):
		return false
	case api.IsAccessError(err):
		return p.journalled != "" || p.Kubeconfig == t.own.Kubeconfig
	}
	return true
}

// run goes on until nothing is open. When the server does not answer, what is
// to be freed is left to the journal; who wants an address tries again later.
func (t *turn) run(ctx context.Context) error {
	for lost := 0; t.open(); {
		err := t.step(ctx, lost)
		switch {
		case err == nil:
			t.s.heard()
		case api.IsLostRace(err):
			lost++
			if err := api.PauseAfterRace(ctx, lost, err); err != nil {
				return err
			}
			if more, err := t.own.join(); err == nil {
				t.admit(more)
			}
		case api.IsAccessError(err), api.IsTransient(err) && ctx.Err() == nil:
			for _, p := range t.asks {
				if p.open() && p.Range == nil && (api.IsTransient(err) || t.concerns(p, err)) {
					t.s.deferAsk(t.pool, p, err)
				}
			}
			if api.IsTransient(err) {
				t.s.silent(err)
			}
			if api.IsAccessError(err) || t.own.open() {
				return err
			}
			return nil // the others have time of their own
		case api.IsTransient(err), !t.refuse(err):
			return err
		}
	}
	return nil
}

// refuse answers with err the asks for an address of a pool that the server does
// not change, so that the asks that free addresses are tried without them. It
// reports whether there were any.
func (t *turn) refuse(err error) bool {
	some := false
	for _, p := range t.asks {
		if p.open() && p.Range != nil && !p.committed {
			p.settle(netip.Addr{}, err)
			some = true
		}
	}
	return some
}

// step reads, patches, and sees to the reservations, once.
func (t *turn) step(ctx context.Context, lost int) error {
	state, err := t.read(ctx, lost)
	if err != nil {
		return err
	}
	if err := t.commit(ctx, state, t.plan(state, lost)); err != nil {
		return err
	}
	for _, p := range t.asks {
		if p.planned {
			p.planned, p.committed, p.drop = false, true, nil
		}
	}
	if err := t.reservations(ctx); err != nil {
		return err
	}
	return t.judge(ctx)
}

func (t *turn) open() bool {
	return slices.ContainsFunc(t.asks, (*pending).open)
}

// read gives the pool, or nil when all that is asked is to free what the
// node's notes know.
func (t *turn) read(ctx context.Context, lost int) (*api.PoolState, error) {
	noted := func(p *pending) bool { return p.Range == nil && p.Note != nil || !p.open() }
	if lost == 0 && !slices.ContainsFunc(t.asks, func(p *pending) bool { return !noted(p) }) {
		return nil, nil
	}
	return t.s.readPool(ctx, t.pool)
}

// readPool gives the pool; one that does not exist is empty, without a UID.
func (s *Store) readPool(ctx context.Context, pool ipam.Pool) (*api.PoolState, error) {
	state, err := api.ReadPool(ctx, s.client, pool.Name())
	switch {
	case err != nil:
		return nil, err
	case state == nil:
		return &api.PoolState{Name: pool.Name(), Base: pool.Prefix.Addr(), Prefix: pool.Prefix}, nil
	case state.Prefix != pool.Prefix:
		return nil, cnierr.New(cnierr.BadRecord, "give one of the networks another network_name",
			"IPPool %s/%s is of %s and not of %s", state.Namespace, state.Name, state.Prefix, pool.Prefix)
	}
	return state, nil
}

// giveUp removes the entry that p does not keep, and restores the former one.
func giveUp(c *api.PoolPatch, p *pending) {
	if p.former == (api.Entry{}) {
		c.Remove(p.drop.key, p.drop.entry)
	} else if !c.Tests(p.drop.key) {
		c.Replace(p.drop.key, p.drop.entry, p.former)
	}
}

// plan makes the next patch. It plans for every ask that the pool does not
// satisfy yet, but for one that an earlier one is about to change.
func (t *turn) plan(state *api.PoolState, lost int) *api.PoolPatch {
	c := &api.PoolPatch{}
	var used *ipam.Set
	if state != nil {
		used = state.Used()
	}
	var takers []*pending
	for i, p := range t.asks {
		if !p.open() || p.committed || t.waitsFor(p, i) {
			continue
		}
		if p.Range != nil {
			takers = append(takers, p)
			continue
		}
		p.planned = true
		t.giveBack(p, state, c)
	}
	for _, p := range takers {
		p.planned = true
		if p.drop != nil && state.Entries[p.drop.key] == p.drop.entry {
			giveUp(c, p)
		}
		if !p.final && p.canceled() {
			p.refusal, p.final = errLeft, true
		}
		if p.final {
			continue
		}
		frees := !c.OnlyAdds()
		if p.refusal = t.take(p, state, used, lost, c); p.refusal != nil && (frees || p.rival != nil) {
			// What this patch frees is there for the next one.
			p.planned, p.refusal = false, nil
		}
	}
	return c
}

// waitsFor says whether an open ask before p is about the same interface of
// the same pod: those are carried out one after the other.
func (t *turn) waitsFor(p *pending, i int) bool {
	for _, q := range t.asks[:i] {
		if q.open() && p.Owner.Same(q.Owner) {
			return true
		}
	}
	return false
}

// giveBack finds what p ends, and plans to take it out. Without a state the
// note is believed.
func (t *turn) giveBack(p *pending, state *api.PoolState, c *api.PoolPatch) {
	p.freed = nil
	if state == nil {
		p.freed = []held{p.Note.held()}
		c.Remove(p.freed[0].key, p.freed[0].entry)
		return
	}
	for key, e := range state.Entries {
		if e.PodRef == "" || !p.Owner.Ends(e.Owner()) {
			continue
		}
		addr, err := state.Addr(key)
		if err != nil {
			continue
		}
		h := held{addr: addr, key: key, entry: e, reserved: true}
		if p.Note != nil && p.Note.Key == key {
			h = p.Note.held()
			h.entry = e
		}
		p.freed = append(p.freed, h)
		c.Remove(h.key, h.entry)
	}
	switch {
	case len(p.freed) == 0 && p.Note != nil && !p.Note.Owner.Same(state.Entries[p.Note.Key].Owner()):
		// The entry has gone already, the reservation perhaps not. If the pod's
		// new container has taken over the one, it needs the other. The note
		// knows the pod, which not every DEL names.
		p.freed = []held{p.Note.held()}
	case len(p.freed) > 0 && p.Note == nil:
		// For whoever goes on if this process dies, or the answer is lost.
		p.Note = t.noteOf(p, p.freed[0])
		t.s.warnIf(t.s.notes.put(p.Note))
	}
}

// errTouched is for one whose entry an earlier ask has this patch change: plan
// leaves it for the next one, as all whom a patch that frees something refuses.
var errTouched = errors.New("the same patch changes the entry")

// errLeft is the error of an ask that nobody waits for.
var errLeft = cnierr.New(cnierr.InvalidNetns, "", "the pod's network namespace is gone, or the call has ended")

// take plans p's address, old or new.
func (t *turn) take(p *pending, state *api.PoolState, used *ipam.Set, lost int, c *api.PoolPatch) error {
	mine := api.NewEntry(p.Owner)
	addr, entry, ok := state.Find(func(a netip.Addr, e api.Entry) bool {
		return p.Owner.Same(e.Owner()) && (p.drop == nil || p.drop.addr != a)
	})
	if p.needsJudging(ok, addr, entry) {
		return errRival
	}
	if ok && p.Want.IsValid() && p.Want != addr && entry.ContainerID != p.Owner.ContainerID {
		// A former container's, whose DEL has not come: the pod has moved on.
		h := held{addr: addr, entry: entry, reserved: true}
		var err error
		if h.key, err = state.Key(addr); err != nil {
			return err
		}
		c.Remove(h.key, h.entry)
		p.freed, ok = []held{h}, false
	}
	if ok {
		if p.Want.IsValid() && p.Want != addr {
			return cnierr.New(cnierr.IPAM, "end the attachment first, or ask for the same address",
				"%s asks for %s and already holds %s", p.Owner.PodRef, p.Want, addr)
		}
		key, err := state.Key(addr)
		if c.Tests(key) {
			return errTouched
		}
		if err == nil && entry != mine {
			c.Replace(key, entry, mine)
			p.former = entry
		}
		p.addr, p.key = addr, key
		return err
	}
	addr, err := t.choose(p, state, used, lost)
	if err != nil {
		return err
	}
	key, err := state.Key(addr)
	if err != nil {
		return cnierr.Wrap(err, cnierr.BadRecord, "remove the host bits from spec.range when the pool is empty",
			"IPPool %s/%s cannot hold %s", state.Namespace, state.Name, addr)
	}
	if state.Bytes += len(key) + mine.Size(); state.Bytes > largestPool {
		return t.tooLarge(state)
	}
	used.Add(addr)
	p.addr, p.key, p.former = addr, key, api.Entry{}
	c.Add(key, mine)
	return nil
}

func (t *turn) tooLarge(state *api.PoolState) error {
	return cnierr.New(cnierr.IPAM,
		"give each node a slice of the range (node_slice_size), or split the range over several networks",
		"IPPool %s holds %d addresses, and one object of the API cannot hold more (1.5 MiB)", t.pool.Name(), len(state.Entries))
}

// choose gives the address that p gets: the lowest free one, or the one that
// it wants. After a lost race it begins somewhere above the lowest, because
// everybody who lost goes for the lowest again.
func (t *turn) choose(p *pending, state *api.PoolState, used *ipam.Set, lost int) (netip.Addr, error) {
	if p.Want.IsValid() {
		return p.Want, t.wanted(p, state, used)
	}
	both := union{used, &t.hidden}
	addr, err := ipam.Choose(p.rng, both)
	if err != nil {
		return addr, cnierr.Wrap(err, cnierr.IPAM, "end attachments that are not needed, or widen the range", "")
	}
	for spread := widest(len(t.asks), lost); lost > 0 && spread > 1; spread /= 4 {
		from := addr
		for range rand.IntN(spread) {
			if next := from.Next(); next.IsValid() {
				from = next
			}
		}
		if above, err := ipam.ChooseFrom(p.rng, both, from); err == nil {
			return above, nil
		}
	}
	return addr, nil
}

// widest is how far above the lowest free address one of several asks may
// begin after so many lost races: far enough that a dozen nodes with as many
// asks each are unlikely to meet again.
func widest(asks, lost int) int { return max(asks, 4) << min(lost+2, 8) }

// wanted says why p cannot have the address that it wants.
func (t *turn) wanted(p *pending, state *api.PoolState, used *ipam.Set) error {
	why := p.rng.Why(p.Want)
	switch {
	case why != "":
	case used.Has(p.Want):
		why = "it is taken"
		if key, err := state.Key(p.Want); err == nil && state.Entries[key].PodRef != "" {
			why = state.Entries[key].PodRef + " holds it"
		}
	case t.hidden.Has(p.Want):
		why = "another pool of the same address space holds it"
	default:
		return nil
	}
	return cannotGive(p, why)
}

func cannotGive(p *pending, why string) error {
	return cnierr.New(cnierr.IPAM, "ask for another address, or let the pool choose",
		"cannot give %s the requested address %s: %s", p.Owner.PodRef, p.Want, why)
}

// union is what is taken in one set or another.
type union []*ipam.Set

// Page implements [ipam.Used].
func (u union) Page(base netip.Addr) (*ipam.Page, error) {
	var sum *ipam.Page
	for _, s := range u {
		page, err := s.Page(base)
		switch {
		case err != nil:
			return nil, err
		case sum == nil:
			sum = page
		case page != nil:
			sum = sum.Or(page)
		}
	}
	return sum, nil
}

// commit writes what is planned.
func (t *turn) commit(ctx context.Context, state *api.PoolState, c *api.PoolPatch) error {
	if len(c.Ops) == 0 {
		return nil
	}
	pools := api.Pools(t.s.client.Namespace())
	if state != nil && state.UID == "" {
		_, err := t.s.client.Create(ctx, pools, api.NewIPPool(t.pool.Name(), t.s.client.Namespace(), t.pool.Prefix.String(), c.Added))
		if kube.NotFound(err) { // not a race
			return cnierr.New(cnierr.InvalidConfig, "create the namespace, or name another one in the kubeconfig's context", "%s", err)
		}
		return err
	}
	ops := c.Ops
	if state != nil && state.NoMap {
		ops = append([]kube.PatchOp{
			{Op: "test", Path: "/spec/allocations", Value: nil},
			{Op: "add", Path: "/spec/allocations", Value: map[string]api.Entry{}},
		}, ops...)
	}
	if state != nil && state.Managed && len(state.Entries) >= manyEntries {
		// As the API's documentation has it: one empty item empties the list.
		ops = append([]kube.PatchOp{{Op: "add", Path: "/metadata/managedFields", Value: []struct{}{{}}}}, ops...)
	}
	_, err := t.s.client.Patch(ctx, pools, t.pool.Name(), ops)
	if kube.TooLarge(err) && state != nil {
		return t.tooLarge(state)
	}
	return err
}

// reservations sees to the reservations of everything that is committed, and
// answers what is done.
func (t *turn) reservations(ctx context.Context) error {
	var mu sync.Mutex
	var late error
	api.ForEach(t.asks, func(p *pending) {
		if !p.open() || !p.committed {
			return
		}
		err := t.finish(ctx, p)
		switch {
		case err == nil:
		case api.IsTransient(err), api.IsAccessError(err):
			mu.Lock()
			defer mu.Unlock()
			late = err // what is open is tried again, or deferred
		default:
			p.settle(netip.Addr{}, err)
		}
	})
	return errors.Join(late, t.hideForeign(ctx))
}

// finish sees to p's reservations and answers it, or plans another address.
func (t *turn) finish(ctx context.Context, p *pending) error {
	var errs []error
	for _, h := range p.freed {
		if err := t.s.freeReservation(ctx, t.pool, h); err != nil {
			if p.Range == nil {
				p.Note = t.noteOf(p, h)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if p.Range == nil {
		p.settle(netip.Addr{}, nil)
		t.s.warnIf(t.s.notes.drop(p.Owner, t.pool.Name()))
		return nil
	}
	p.freed = nil
	if p.refusal != nil {
		p.settle(netip.Addr{}, p.refusal)
		return nil
	}
	h := held{addr: p.addr, key: p.key, entry: api.NewEntry(p.Owner), reserved: p.Exclusive}
	if p.canceled() {
		p.drop, p.committed = &h, false
		p.refusal, p.final = errLeft, true
		return nil
	}
	if p.Exclusive {
		uid, ours, err := t.s.reserve(ctx, t.pool, p.addr, p.Owner)
		if err != nil {
			return err
		}
		if !ours {
			p.drop, p.committed, p.former = &h, false, api.Entry{}
			p.foreign++
			if p.Want.IsValid() {
				p.refusal, p.final = cannotGive(p, "another pool of the same address space holds it"), true
			}
			return nil
		}
		h.uid = uid
	}
	p.settle(p.addr, nil)
	// A note is never needed: without it DEL reads.
	_ = t.s.notes.put(t.noteOf(p, h))
	return nil
}

// hideForeign hides the addresses that others have reserved from the next
// choice: those that were met, and after a few of them all that there are.
func (t *turn) hideForeign(ctx context.Context) error {
	most := 0
	for _, p := range t.asks {
		if p.drop != nil {
			t.hidden.Add(p.drop.addr)
			most = max(most, p.foreign)
		}
	}
	if most < foreignLooks || t.listed {
		return nil
	}
	t.listed = true
	return api.EachReserved(ctx, t.s.client, t.pool, t.hidden.Add)
}
