package api

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// Reservation is an OverlappingRangeIPReservation. It keeps an address from the
// other pools of its address space.
type Reservation struct {
	TypeMeta
	Metadata kube.Meta       `json:"metadata"`
	Spec     ReservationSpec `json:"spec"`
}

// ReservationSpec has the holder of a reservation.
type ReservationSpec struct {
	ContainerID string `json:"containerid,omitempty"` // required by whereabouts 0.7's CRD
	PodRef      string `json:"podref"`
	IfName      string `json:"ifname,omitempty"`
}

// BelongsTo reports whether the reservation belongs to o. A reservation that whereabouts
// wrote before its version 0.8 has no interface name, and then only the pod is compared.
func (r ReservationSpec) BelongsTo(o ipam.Owner) bool {
	return r.PodRef == o.PodRef && (r.IfName == o.IfName || r.IfName == "")
}

// NewReservation returns the object of a reservation for o.
func NewReservation(name, namespace string, o ipam.Owner) Reservation {
	return Reservation{
		TypeMeta: typed("OverlappingRangeIPReservation"),
		Metadata: kube.Meta{Name: name, Namespace: namespace},
		Spec:     ReservationSpec{ContainerID: o.ContainerID, PodRef: o.PodRef, IfName: o.IfName},
	}
}

// CreateReservation creates a reservation for o and returns its UID, or "" if a reservation
// with this name exists already.
func CreateReservation(ctx context.Context, client *kube.Client, name string, o ipam.Owner) (uid string, err error) {
	made, err := client.Create(ctx, Reservations(client.Namespace()), NewReservation(name, client.Namespace(), o))
	if kube.IsAlreadyExists(err) {
		return "", nil
	}
	return made.UID, err
}

// ReadReservation returns the reservation with this name, or nil if there is none.
func ReadReservation(ctx context.Context, client *kube.Client, name string) (*Reservation, error) {
	data, err := client.Get(ctx, Reservations(client.Namespace()), name)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Reservation
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, failure.From(err, failure.BadRecord, "OverlappingRangeIPReservation %s", name).Cure("correct or delete the object")
	}
	return &r, nil
}

// DeleteReservation deletes the reservation with this name if the preconditions hold.
func DeleteReservation(ctx context.Context, client *kube.Client, name string, pre kube.Preconditions) error {
	return client.Delete(ctx, Reservations(client.Namespace()), name, pre)
}

// EachReserved calls each with every address of pool's network that has a
// reservation in pool's address space.
func EachReserved(ctx context.Context, client *kube.Client, pool ipam.Pool, each func(netip.Addr)) error {
	_, err := client.List(ctx, Reservations(client.Namespace()), kube.ListOptions{MetadataOnly: true}, func(item []byte) error {
		var r struct {
			Metadata kube.Meta `json:"metadata"`
		}
		if err := json.Unmarshal(item, &r); err != nil {
			return err
		}
		if addr, ok := ReservedAddr(pool.Space, r.Metadata.Name); ok && pool.Prefix.Contains(addr) {
			each(addr)
		}
		return nil
	})
	return err
}

// HiddenFrom returns the addresses of pool's network that have a reservation in pool's
// address space. The value of each address is the pod that holds the reservation.
func HiddenFrom(ctx context.Context, client *kube.Client, pool ipam.Pool) (map[netip.Addr]string, error) {
	hidden := map[netip.Addr]string{}
	_, err := client.List(ctx, Reservations(client.Namespace()), kube.ListOptions{}, func(item []byte) error {
		var r Reservation
		if err := json.Unmarshal(item, &r); err != nil {
			return nil //nolint:nilerr // an ADD reads only the names, and an unreadable object has none
		}
		if addr, ok := ReservedAddr(pool.Space, r.Metadata.Name); ok && pool.Prefix.Contains(addr) {
			hidden[addr] = r.Spec.PodRef
		}
		return nil
	})
	return hidden, err
}

// ReservedAddr returns the address in the name of a reservation, or false if the name does
// not belong to the address space.
func ReservedAddr(space, name string) (netip.Addr, bool) {
	if space != "" {
		var ok bool
		if name, ok = strings.CutPrefix(name, space+"-"); !ok {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	return addr, err == nil
}
