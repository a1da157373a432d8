package store

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// A pod's new sandbox takes over the entry of the pod's former sandbox. But an ADD may be
// late: while it waited for a slow server, the pod got a newer sandbox, perhaps
// on another node. If the late ADD took over the newer sandbox's entry, the DEL of the
// late ADD's sandbox would free the address of a running pod.

const (
	// minSuccessorAge is the age that a sandbox must have before a newer sandbox of the
	// same pod can hold an address: the older sandbox must end first, and the newer one
	// must be scheduled and made.
	minSuccessorAge = time.Second
	// clockStep is the granularity of the server's times: creationTimestamp
	// and the header Date are truncated to seconds.
	clockStep = time.Second
)

// errRival is the error of an ask that would take over the entry of another container of
// the pod, if that container may be newer. judge finds out whether it is newer, before the
// next patch.
var errRival = errors.New("another container of the pod has the address")

// needsJudging reports whether j may take over entry only after judge has found its
// container to be older. ok is false if j's pod has no entry.
func (j *job) needsJudging(ok bool, addr netip.Addr, entry api.Entry) bool {
	j.rival = nil
	if j.saw == nil {
		j.saw = &entry
	}
	if !ok || entry.ContainerID == j.Owner.ContainerID || entry == j.older || j.Born.IsZero() {
		return false
	}
	if entry == *j.saw && time.Since(j.Born) < minSuccessorAge {
		return false
	}
	j.rival = &held{addr: addr, entry: entry}
	return true
}

// judge lets an ask take over the entry of its rival if the rival is older, and
// refuses the ask otherwise.
func (t *turn) judge(ctx context.Context) error {
	return inParallel(t.jobs, func(j *job) error {
		if !j.open() || j.rival == nil {
			return nil
		}
		newer, err := t.newer(ctx, j, *j.rival)
		switch {
		case err != nil && (api.IsTransient(err) || api.IsAccessError(err)):
			return err
		case err != nil:
			j.failed = err
		case newer:
			j.failed = failure.New(failure.TryAgain, "this ADD of container %s is too late: the newer container %s of %s has %s",
				j.Owner.ContainerID, j.rival.entry.ContainerID, j.Owner.PodRef, j.rival.addr).
				Cure("nothing to do: a pod that still needs the address gets it with its next sandbox")
		default:
			j.older = j.rival.entry
		}
		return nil
	})
}

// newer reports whether rival may have got its address after j's sandbox was made. If rival
// is on this node, the notes decide. If it is on another node, its reservation decides, by
// the server's clock. Without reservations newer returns false.
func (t *turn) newer(ctx context.Context, j *job, rival held) (bool, error) {
	holder := rival.entry.Owner()
	n := t.s.notes.get(holder, t.pool.Name())
	if n != nil && !n.Born.IsZero() && !n.Born.After(time.Now()) { // the clock may have been set back
		return n.Born.After(j.Born), nil
	}
	if !j.Exclusive {
		return false, nil
	}
	r, err := api.ReadReservation(ctx, t.s.client, t.pool.ReservationName(rival.addr))
	switch {
	case err != nil:
		return false, err
	case r == nil, r.Spec.BelongsTo(holder) && r.Spec.ContainerID != "" && r.Spec.ContainerID != holder.ContainerID:
		// The holder is about to reserve the address, or died before it did so.
		// Reserve the address for it, so that the pod's next sandbox can compare the times.
		return t.reserveFor(ctx, rival)
	case !r.Spec.BelongsTo(holder):
		return false, nil // reserved by another: the ask gives it up later
	}
	now, ok := t.s.client.ServerTime()
	if !ok {
		now = time.Now()
	}
	// The server's clock is at now or later, so j's sandbox was made at born or
	// later.
	born := now.Add(-time.Since(j.Born))
	return r.Metadata.CreationTimestamp.After(born.Add(-clockStep)), nil
}

// reserveFor makes the reservation for h, an address that another container holds. It
// reports whether that container still holds the address. If the container does not,
// reserveFor deletes the reservation again: the container's DEL may have looked for a
// reservation before this one was made.
func (t *turn) reserveFor(ctx context.Context, h held) (bool, error) {
	var err error
	if h.uid, _, err = t.s.reserve(ctx, t.pool, h.addr, h.entry.Owner()); err != nil {
		return false, err
	}
	state, err := t.s.readPool(ctx, t.pool)
	if err != nil {
		return false, err
	}
	if key, err := state.Key(h.addr); err == nil && state.Entries[key] == h.entry {
		return true, nil
	}
	h.reserved = h.uid != "" // otherwise another pool or pod has it
	return false, t.s.freeReservation(ctx, t.pool, h)
}
