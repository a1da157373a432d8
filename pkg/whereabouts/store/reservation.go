package store

import (
	"context"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// vanishing bounds how often a reservation may disappear between the conflict
// and the read.
const vanishing = 3

// reserve makes owner's reservation of addr and returns the UID of the reservation. owned
// is false if another owner has reserved addr.
func (s *Store) reserve(ctx context.Context, pool ipam.Pool, addr netip.Addr, o ipam.Owner) (uid string, owned bool, err error) {
	name := pool.ReservationName(addr)
	for range vanishing {
		uid, err := api.CreateReservation(ctx, s.client, name, o)
		if err != nil || uid != "" {
			return uid, err == nil, err
		}
		existing, err := api.ReadReservation(ctx, s.client, name)
		switch {
		case err != nil:
			return "", false, err
		case existing == nil:
		case !existing.Spec.BelongsTo(o):
			return "", false, nil
		case existing.Spec.ContainerID == o.ContainerID:
			return existing.Metadata.UID, true, nil
		default:
			// A former container of the same pod made the reservation, and may be about to
			// delete it. The new reservation has another UID, so that this deletion fails.
			// A reservation by upstream's plugin names no container.
			err := api.DeleteReservation(ctx, s.client, name, kube.Preconditions{UID: existing.Metadata.UID})
			if err != nil && !kube.IsNotFound(err) && !kube.IsConflict(err) {
				return "", false, err
			}
		}
	}
	return "", false, failure.New(failure.TryAgain, "OverlappingRangeIPReservation %s is created and deleted repeatedly", name).Cure("try again")
}

// freeReservation deletes the reservation of the entry h, and no other one.
func (s *Store) freeReservation(ctx context.Context, pool ipam.Pool, h held) error {
	if !h.reserved {
		return nil
	}
	name := pool.ReservationName(h.addr)
	for replaced := false; ; replaced = true {
		if h.uid == "" {
			existing, err := api.ReadReservation(ctx, s.client, name)
			if err != nil || existing == nil || !existing.Spec.BelongsTo(h.entry.Owner()) {
				return err
			}
			// A reservation by upstream's plugin names no container. If it has just replaced
			// another reservation, it belongs to the pod's next container.
			if holder := existing.Spec.ContainerID; holder != h.entry.ContainerID && (holder != "" || replaced) {
				return nil
			}
			h.uid = existing.Metadata.UID
		}
		err := api.DeleteReservation(ctx, s.client, name, kube.Preconditions{UID: h.uid})
		switch {
		case kube.IsNotFound(err), kube.IsConflict(err) && replaced:
			return nil
		case !kube.IsConflict(err):
			return err
		}
		h.uid = "" // there is another reservation by now: check its holder
	}
}
