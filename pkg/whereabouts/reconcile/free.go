package reconcile

import (
	"context"
	"errors"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// removals bounds the number of entries that one patch removes. Each removal needs
	// three operations, and the server accepts ten thousand operations in one patch.
	removals = 500
	// maxLost bounds the number of races that one patch may lose.
	maxLost = 5
)

// act repairs the due findings in batches. It requests the pods of each batch immediately
// before it repairs the batch.
func (r *Reconciler) act(ctx context.Context, s *api.Survey, due []*Finding) {
	for len(due) > 0 {
		n := 1
		for n < len(due) && n < removals && due[n].Kind == due[0].Kind && due[n].Pool == due[0].Pool {
			n++
		}
		bunch := r.confirm(ctx, due[:n])
		switch {
		case len(bunch) == 0:
		case bunch[0].Kind == MissingReservation:
			r.makeReservations(ctx, bunch)
		case bunch[0].Kind == StaleEntry:
			freed := r.freeEntries(ctx, bunch, 0)
			r.freeReservations(ctx, freed, []string{bunch[0].Pool})
		default:
			r.freeReservations(ctx, bunch, poolsOf(s, bunch))
		}
		due = due[n:]
	}
}

// confirm requests the pods of the findings, and returns the findings that are still true.
func (r *Reconciler) confirm(ctx context.Context, bunch []*Finding) []*Finding {
	var refs []string
	for _, f := range bunch {
		refs = append(refs, f.PodRef)
	}
	slices.Sort(refs)
	pods, failed := getPods(ctx, r.Client, slices.Compact(refs))
	var sure []*Finding
	for _, f := range bunch {
		switch err := failed[f.PodRef]; {
		case err != nil:
			f.finish(Failed, err)
		case f.confirmed(pods[f.PodRef]):
			sure = append(sure, f)
		default:
			f.finish(Waiting, nil)
		}
	}
	return sure
}

// freeEntries removes the entries of bunch, which are of one pool, by one patch. If one of
// the entries has changed, the server refuses the whole patch, and freeEntries tries again
// with the unchanged entries. It returns the findings whose entries were removed.
func (r *Reconciler) freeEntries(ctx context.Context, bunch []*Finding, lost int) []*Finding {
	if len(bunch) == 0 {
		return nil
	}
	c := &api.PoolPatch{}
	for _, f := range bunch {
		c.Remove(f.holding.Key, f.holding.Entry)
	}
	pool := bunch[0].Pool
	_, err := r.Client.Patch(ctx, api.Pools(r.Client.Namespace()), pool, c.Ops)
	if err == nil {
		for _, f := range bunch {
			f.finish(Freed, nil)
		}
		return bunch
	}
	give := func(err error) []*Finding {
		for _, f := range bunch {
			f.finish(Failed, err)
		}
		return nil
	}
	if !api.IsLostRace(err) || lost == maxLost {
		return give(err)
	}
	if err := api.PauseAfterRace(ctx, lost, err); err != nil {
		return give(err)
	}
	now, readErr := api.ReadPool(ctx, r.Client, pool)
	if readErr != nil {
		return give(readErr)
	}
	var same, out []*Finding
	for _, f := range bunch {
		e, exists := api.Entry{}, false
		if now != nil {
			e, exists = now.Entries[f.holding.Key]
		}
		switch {
		case !exists: // perhaps by this patch, whose answer was lost
			f.finish(Freed, nil)
			out = append(out, f)
		case e == f.holding.Entry:
			same = append(same, f)
		default:
			f.finish(Changed, nil)
		}
	}
	return append(out, r.freeEntries(ctx, same, lost+1)...)
}

// reserved returns the reservation of f's entry, or nil if there is none.
func (f *Finding) reserved() *api.Reservation {
	if f.loose != nil {
		return f.loose
	}
	return f.holding.Reservation
}

// freeReservations deletes the unchanged reservations of bunch. Then it reads the pools. If
// in between a new pod of the same name got the same address and took over the reservation,
// it makes the reservation again.
func (r *Reconciler) freeReservations(ctx context.Context, bunch []*Finding, pools []string) {
	bunch = slices.DeleteFunc(slices.Clone(bunch), func(f *Finding) bool { return f.reserved() == nil })
	if len(bunch) == 0 {
		return
	}
	all := api.NewGroup()
	for _, f := range bunch {
		all.Go(func() error {
			m := f.reserved().Metadata
			err := api.DeleteReservation(ctx, r.Client, m.Name, kube.Preconditions{UID: m.UID, ResourceVersion: m.ResourceVersion})
			switch {
			case kube.IsConflict(err):
				f.finish(Changed, nil)
			case kube.IsNotFound(err):
				f.finish(Freed, nil)
			default:
				f.finish(Freed, err)
			}
			return nil
		})
	}
	_ = all.Wait() // the findings have the errors
	for _, pool := range pools {
		now, err := api.ReadPool(ctx, r.Client, pool)
		for _, f := range bunch {
			switch {
			case f.Outcome != Freed:
			case err != nil:
				f.finish(Failed, err)
			case now != nil:
				l := f.reserved()
				o := ipam.Owner{PodRef: l.Spec.PodRef, IfName: l.Spec.IfName}
				if e, ok := entryAt(now, l.Metadata.Name, o); ok {
					_, err := api.CreateReservation(ctx, r.Client, l.Metadata.Name, e.Owner())
					f.finish(Changed, err)
				}
			}
		}
	}
}

// poolsOf returns the pools that may have the addresses of the reservations.
func poolsOf(s *api.Survey, bunch []*Finding) []string {
	var names []string
	for _, p := range s.Pools {
		inside := func(f *Finding) bool {
			return slices.ContainsFunc(readings(f.Reservation), p.Prefix.Contains)
		}
		if slices.ContainsFunc(bunch, inside) {
			names = append(names, p.Name)
		}
	}
	return names
}

// makeReservations makes the missing reservations of entries. If an entry is gone
// meanwhile, it deletes the reservation again.
func (r *Reconciler) makeReservations(ctx context.Context, bunch []*Finding) {
	uids := make(map[*Finding]string, len(bunch))
	for _, f := range bunch { // there are only a few of them
		uid, err := api.CreateReservation(ctx, r.Client, f.Reservation, f.holding.Owner())
		if uid != "" {
			uids[f] = uid
		}
		f.finish(Made, err)
	}
	if len(uids) == 0 {
		return
	}
	now, err := api.ReadPool(ctx, r.Client, bunch[0].Pool)
	for f, uid := range uids {
		if err == nil && now != nil && now.Entries[f.holding.Key] == f.holding.Entry {
			continue
		}
		undo := api.DeleteReservation(ctx, r.Client, f.Reservation, kube.Preconditions{UID: uid})
		if kube.IsNotFound(undo) || kube.IsConflict(undo) {
			undo = nil
		}
		f.finish(Changed, errors.Join(err, undo))
	}
}
