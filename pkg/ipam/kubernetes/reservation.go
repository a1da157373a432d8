package kubernetes

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// vanishing is how often a reservation may disappear between being in the way
// and being looked at.
const vanishing = 3

// reserve makes owner's reservation of addr and gives its UID. It says false
// if somebody else has one.
func (s *Store) reserve(ctx context.Context, pool ipam.Pool, addr netip.Addr, o ipam.Owner) (uid string, ours bool, err error) {
	all := Reservations(s.client.Namespace())
	name := pool.ReservationName(addr)
	for range vanishing {
		var made kube.Meta
		made, err = s.client.Create(ctx, all, newReservation(name, s.client.Namespace(), o))
		if err == nil {
			return made.UID, true, nil
		}
		if !kube.Exists(err) {
			return "", false, err
		}
		there, getErr := s.readReservation(ctx, name)
		if getErr != nil {
			return "", false, getErr
		}
		switch {
		case there == nil:
		case !there.Spec.of(o):
			return "", false, nil
		case there.Spec.ContainerID == o.ContainerID:
			return there.Metadata.UID, true, nil
		default:
			// The same pod's former container made it, and may be about to
			// delete it: with a new UID it is out of reach of that. Upstream's
			// names no container.
			pre := kube.Preconditions{UID: there.Metadata.UID}
			if err := s.client.Delete(ctx, all, name, pre); err != nil && !kube.NotFound(err) && !kube.Conflict(err) {
				return "", false, err
			}
		}
	}
	return "", false, err
}

func newReservation(name, namespace string, o ipam.Owner) reservation {
	return reservation{
		typeMeta: typed("OverlappingRangeIPReservation"),
		Metadata: objectMeta{Name: name, Namespace: namespace},
		Spec:     reservationSpec{ContainerID: o.ContainerID, PodRef: o.PodRef, IfName: o.IfName},
	}
}

// readReservation gives a reservation, nil when there is none.
func (s *Store) readReservation(ctx context.Context, name string) (*reservation, error) {
	data, err := s.client.Get(ctx, Reservations(s.client.Namespace()), name)
	if kube.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r reservation
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, cnierr.Wrap(err, cnierr.BadRecord, "correct or delete the object", "OverlappingRangeIPReservation %s", name)
	}
	return &r, nil
}

// freeReservation deletes the reservation that belongs to the entry h, and no
// other one.
func (s *Store) freeReservation(ctx context.Context, pool ipam.Pool, h held) error {
	if !h.reserved {
		return nil
	}
	name := pool.ReservationName(h.addr)
	for replaced := false; ; replaced = true {
		if h.uid == "" {
			there, err := s.readReservation(ctx, name)
			if err != nil || there == nil || !there.Spec.of(h.entry.Owner()) {
				return err
			}
			// Upstream's names no container: it is the pod's next one's if it
			// was made just now.
			if by := there.Spec.ContainerID; by != h.entry.ContainerID && (by != "" || replaced) {
				return nil
			}
			h.uid = there.Metadata.UID
		}
		err := s.client.Delete(ctx, Reservations(s.client.Namespace()), name, kube.Preconditions{UID: h.uid})
		switch {
		case kube.NotFound(err), kube.Conflict(err) && replaced:
			return nil
		case !kube.Conflict(err):
			return err
		}
		h.uid = "" // another one by now: whose?
	}
}

// eachReserved calls each with every address of pool's network that has a
// reservation in pool's address space.
func (s *Store) eachReserved(ctx context.Context, pool ipam.Pool, each func(netip.Addr)) error {
	_, err := s.client.List(ctx, Reservations(s.client.Namespace()), kube.ListOptions{MetadataOnly: true}, func(item []byte) error {
		var r struct {
			Metadata objectMeta `json:"metadata"`
		}
		if err := json.Unmarshal(item, &r); err != nil {
			return err
		}
		if addr, ok := reservedAddr(pool.Space, r.Metadata.Name); ok && pool.Prefix.Contains(addr) {
			each(addr)
		}
		return nil
	})
	return err
}

// reservedAddr gives the address that a reservation is named after, and false
// if it is of another address space.
func reservedAddr(space, name string) (netip.Addr, bool) {
	if space != "" {
		var ok bool
		if name, ok = strings.CutPrefix(name, space+"-"); !ok {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	return addr, err == nil
}
