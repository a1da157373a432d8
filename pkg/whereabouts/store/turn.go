package store

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// maxPoolSize is the limit of one object as JSON, in bytes: etcd refuses a
	// request of 1.5 MiB, and the server needs some of that itself.
	maxPoolSize = 1<<20 + 1<<19 - 24<<10
	// manyEntries is the number of entries from which on the patch removes
	// metadata.managedFields. There the server records who wrote each entry, for
	// server-side apply, which is not used on pools. With 2500 entries this record costs
	// three quarters of a patch's time, and takes a quarter of the object.
	manyEntries = 50
	// foreignChecks is a number of chosen addresses that turn out to be reserved by others.
	// If a job has met so many, all reservations are listed at once.
	foreignChecks = 3
)

// turn is the work of a writer: it carries out the asks of several processes for one
// pool.
type turn struct {
	s    *Store
	pool ipam.Pool
	jobs []*job
	self *job

	last   cursor
	hidden ipam.Set // addresses that others have reserved
	listed bool     // hidden has all of them
}

// takeTurn carries out jobs, and the journal's entries for the pool.
func (s *Store) takeTurn(ctx context.Context, pool ipam.Pool, self *job, jobs []*job) error {
	t := &turn{s: s, pool: pool, self: self}
	t.admit(append(jobs, s.journalled(pool, jobs)...))
	err := t.run(ctx)
	if err != nil && (!api.IsTransient(err) || ctx.Err() != nil) {
		for _, j := range t.jobs {
			if j.open() && t.concerns(j, err) {
				j.finish(netip.Addr{}, err)
			}
		}
	}
	for _, j := range t.jobs {
		if j.journalFile != "" && !j.open() && j.err == nil && j.answer.Deferred == "" {
			s.warnIf(s.journal.drop(j.journalFile))
			s.eachFormerNote(j.Kubeconfig, j.Owner, func(all notes, n *note) {
				if n.Pool == pool {
					s.warnIf(all.drop(j.Owner, pool.Name()))
				}
			})
		}
	}
	return err
}

// admit makes jobs part of the turn.
func (t *turn) admit(jobs []*job) {
	for _, j := range jobs {
		var err error
		switch {
		case j.nothing():
			j.finish(netip.Addr{}, nil)
		case j.Range == nil && j.Note == nil:
			j.Note = t.s.notes.get(j.Owner, t.pool.Name())
		case j.Range != nil:
			if j.rng, err = ipam.NewRange(*j.Range); err != nil {
				j.finish(netip.Addr{}, err)
			}
		}
	}
	t.jobs = append(t.jobs, jobs...)
}

// journalled returns the journal's jobs for the pool. If an attachment now requests an
// address, journalled drops the journal's entries of that attachment, because they would
// free the new address.
func (s *Store) journalled(pool ipam.Pool, jobs []*job) []*job {
	var kept []*job
	for _, j := range s.journal.jobs(s.client, pool) {
		wanted := slices.ContainsFunc(jobs, func(q *job) bool {
			return q.Range != nil && q.Owner.ContainerID == j.Owner.ContainerID && q.Owner.IfName == j.Owner.IfName
		})
		if wanted {
			s.warnIf(s.journal.drop(j.journalFile))
			continue
		}
		kept = append(kept, j)
	}
	return kept
}

// concerns reports whether err, which ended the turn, is also j's error. If the server
// refused the writer's credentials, it may still accept an ask that was made with other
// credentials.
func (t *turn) concerns(j *job, err error) bool {
	switch {
	case j == t.self:
		return true
	case api.IsTransient(err):
		return false
	case api.IsAccessError(err):
		return j.journalFile != "" || j.Kubeconfig == t.self.Kubeconfig
	}
	return true
}

// run works until no job is open. If the server does not answer, releases go to
// the journal, and requests for an address are tried again later.
func (t *turn) run(ctx context.Context) error {
	for lost := 0; t.open(); {
		err := t.step(ctx, lost)
		switch {
		case err == nil:
			t.s.forgetSilence()
		case api.IsLostRace(err):
			lost++
			if err := api.PauseAfterRace(ctx, lost, err); err != nil {
				return err
			}
			if more, err := t.self.join(); err == nil {
				t.admit(more)
			}
		case api.IsAccessError(err), api.IsTransient(err) && ctx.Err() == nil:
			for _, j := range t.jobs {
				if j.open() && j.Range == nil && (api.IsTransient(err) || t.concerns(j, err)) {
					t.s.deferAsk(t.pool, j, err)
				}
			}
			if api.IsTransient(err) {
				t.s.recordSilence(err)
			}
			if api.IsAccessError(err) || t.self.open() {
				return err
			}
			return nil // the other processes have their own limits
		case api.IsTransient(err), !t.refuse(err):
			return err
		}
	}
	return nil
}

// refuse ends all waiting requests for an address with err, because the server does not
// change the pool. The releases are then tried without these requests. refuse reports
// whether there were such requests.
func (t *turn) refuse(err error) bool {
	some := false
	for _, j := range t.jobs {
		if j.Range != nil && j.plannable() {
			j.finish(netip.Addr{}, err)
			some = true
		}
	}
	return some
}

// step reads the pool, patches it, and updates the reservations, each once.
func (t *turn) step(ctx context.Context, lost int) error {
	state, err := t.read(ctx, lost)
	if err != nil {
		return err
	}
	if err := t.commit(ctx, state, t.plan(state, lost)); err != nil {
		return err
	}
	for _, j := range t.jobs {
		if j.phase == phasePlanned {
			j.phase, j.drop = phaseCommitted, nil
		}
	}
	t.keepLast()
	if err := t.reservations(ctx); err != nil {
		return err
	}
	return t.judge(ctx)
}

func (t *turn) open() bool {
	return slices.ContainsFunc(t.jobs, (*job).open)
}

// read returns the pool. It returns nil, and makes no request, if all asks are releases of
// noted addresses and no race was lost yet.
func (t *turn) read(ctx context.Context, lost int) (*api.PoolState, error) {
	noted := func(j *job) bool { return j.Range == nil && j.Note != nil || !j.open() }
	if lost == 0 && !slices.ContainsFunc(t.jobs, func(j *job) bool { return !noted(j) }) {
		return nil, nil
	}
	return t.s.readPool(ctx, t.pool)
}

// readPool returns the pool. If the server has no such pool, it returns an empty one
// without a UID.
func (s *Store) readPool(ctx context.Context, pool ipam.Pool) (*api.PoolState, error) {
	state, err := api.ReadPool(ctx, s.client, pool.Name())
	switch {
	case err != nil:
		return nil, err
	case state == nil:
		return &api.PoolState{Name: pool.Name(), Base: pool.Prefix.Addr(), Prefix: pool.Prefix}, nil
	case state.Prefix != pool.Prefix:
		return nil, failure.New(failure.BadRecord, "IPPool %s/%s has the range %s, want %s", state.Namespace, state.Name, state.Prefix, pool.Prefix).
			Cure("give one of the networks another network_name")
	}
	return state, nil
}

// commit writes the planned patch.
func (t *turn) commit(ctx context.Context, state *api.PoolState, c *api.PoolPatch) error {
	if len(c.Ops) == 0 {
		return nil
	}
	pools := api.Pools(t.s.client.Namespace())
	if state != nil && state.UID == "" {
		_, err := t.s.client.Create(ctx, pools, api.NewIPPool(t.pool.Name(), t.s.client.Namespace(), t.pool.Prefix.String(), c.Added))
		if kube.IsNotFound(err) { // not a race
			return failure.New(failure.InvalidConfig, "%s", err).Cure("create the namespace, or name another namespace in the kubeconfig's context")
		}
		return err
	}
	ops := c.Ops
	if state != nil {
		// Another pool of this name may count its keys from another address.
		ops = append([]kube.PatchOp{{Op: "test", Path: "/metadata/uid", Value: state.UID}}, ops...)
	}
	if state != nil && state.NoMap {
		ops = append([]kube.PatchOp{
			{Op: "test", Path: "/spec/allocations", Value: nil},
			{Op: "add", Path: "/spec/allocations", Value: map[string]api.Entry{}},
		}, ops...)
	}
	if state != nil && state.Managed && len(state.Entries) >= manyEntries {
		// According to the documentation of the API, one empty item clears the list.
		ops = append([]kube.PatchOp{{Op: "add", Path: "/metadata/managedFields", Value: []struct{}{{}}}}, ops...)
	}
	began := time.Now()
	_, err := t.s.client.Patch(ctx, pools, t.pool.Name(), ops)
	// If the server does not answer, that is no sign that many nodes change the pool.
	if took := time.Since(began); err == nil || took >= slowPatch && !kube.IsUnavailable(err) {
		t.patched(took)
	}
	if kube.IsTooLarge(err) && state != nil {
		return t.tooLarge(state)
	}
	return err
}

// reservations updates the reservations of all committed jobs, and ends the jobs that are
// complete.
func (t *turn) reservations(ctx context.Context) error {
	late := inParallel(t.jobs, func(j *job) error {
		if j.phase != phaseCommitted {
			return nil
		}
		err := t.finish(ctx, j)
		if err == nil || api.IsTransient(err) || api.IsAccessError(err) {
			return err // open jobs are tried again, or deferred
		}
		j.finish(netip.Addr{}, err)
		return nil
	})
	return errors.Join(late, t.hideForeign(ctx))
}

// inParallel calls do for each job, a bounded number concurrently, and returns
// the first error.
func inParallel(jobs []*job, do func(*job) error) error {
	all := api.NewGroup()
	for _, j := range jobs {
		all.Go(func() error { return do(j) })
	}
	return all.Wait()
}

// finish updates the reservations of j. Then it ends j, or makes j choose another address
// in the next step.
func (t *turn) finish(ctx context.Context, j *job) error {
	var errs []error
	for _, h := range j.freed {
		if err := t.s.freeReservation(ctx, t.pool, h); err != nil {
			if j.Range == nil {
				j.Note = t.noteOf(j, h)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if j.Range == nil {
		j.finish(netip.Addr{}, nil)
		t.s.warnIf(t.s.notes.drop(j.Owner, t.pool.Name()))
		return nil
	}
	j.freed = nil
	if err := cmp.Or(j.failed, j.refused); err != nil {
		j.finish(netip.Addr{}, err)
		return nil
	}
	h := held{addr: j.addr, key: j.key, entry: api.NewEntry(j.Owner), reserved: j.Exclusive}
	if j.canceled() {
		j.phase, j.drop, j.failed = phaseWaiting, &h, errLeft
		return nil
	}
	if j.Exclusive {
		uid, owned, err := t.s.reserve(ctx, t.pool, j.addr, j.Owner)
		if err != nil {
			return err
		}
		if !owned {
			j.phase, j.drop, j.former = phaseWaiting, &h, api.Entry{}
			j.foreign++
			if j.Want.IsValid() {
				j.failed = cannotGive(j, "another pool of the same address space holds it")
			}
			return nil
		}
		h.uid = uid
	}
	j.finish(j.addr, nil)
	// Notes are optional: without a note, DEL reads the pool.
	_ = t.s.notes.put(t.noteOf(j, h))
	return nil
}

// hideForeign makes the next choice skip addresses that others have reserved. At first
// these are only the chosen addresses that turned out to be reserved. After foreignChecks
// of them, it lists all reservations of the pool's network.
func (t *turn) hideForeign(ctx context.Context) error {
	foreign := 0
	for _, j := range t.jobs {
		if j.drop != nil {
			t.hidden.Add(j.drop.addr)
			foreign = max(foreign, j.foreign)
		}
	}
	if foreign < foreignChecks || t.listed {
		return nil
	}
	t.listed = true
	return api.EachReserved(ctx, t.s.client, t.pool, t.hidden.Add)
}

func (t *turn) tooLarge(state *api.PoolState) error {
	return failure.New(failure.IPAM, "IPPool %s holds %d addresses, and one object of the API cannot hold more (1.5 MiB)", t.pool.Name(), len(state.Entries)).
		Cure("let each node assign addresses of its own part of the range (block_size or node_slice_size), or split the range over several networks")
}
