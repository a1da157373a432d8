package reconcile

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Kind is the kind of a [Finding].
type Kind string

// The kinds of findings.
const (
	// StaleEntry: the entry's pod is gone or has ended, or the entry is of a former sandbox
	// of the pod. The entry is freed, together with its reservation.
	StaleEntry Kind = "stale entry"
	// StaleReservation: the reservation has no entry. The reservation is deleted.
	StaleReservation Kind = "stale reservation"
	// MissingReservation: the entry has no reservation, although other entries of its pool
	// have one. The reservation is made.
	MissingReservation Kind = "missing reservation"
	// ForeignReservation: another holder has the reservation of the entry's address.
	// LooseReservation: the reservation has no entry, but its pod exists. Both kinds are
	// only reported.
	ForeignReservation Kind = "foreign reservation"
	LooseReservation   Kind = "loose reservation"
)

// The outcomes of findings.
const (
	Freed     = "freed"
	Made      = "made"
	WouldFree = "would be freed"
	WouldMake = "would be made"
	Waiting   = "seen for the first time" // or not long enough ago
	Kept      = "left alone"
	Changed   = "changed meanwhile" // another process was quicker
	Failed    = "failed"
)

// Finding is a defect in the store, and the outcome.
type Finding struct {
	Kind        Kind       `json:"kind"`
	Pool        string     `json:"pool,omitempty"`
	Address     netip.Addr `json:"address,omitzero"`
	Reservation string     `json:"reservation,omitempty"`
	PodRef      string     `json:"podref"`
	IfName      string     `json:"ifname,omitempty"`
	ContainerID string     `json:"containerID,omitempty"`
	Why         string     `json:"why"`
	Outcome     string     `json:"outcome"`
	Error       string     `json:"error,omitempty"`

	holding *api.Holding
	loose   *api.Reservation
	rivals  []netip.Addr // addresses that another container has for the same interface
	mark    mark
}

// Count returns how many of the findings have one of the outcomes.
func Count(found []*Finding, outcomes ...string) int {
	n := 0
	for _, f := range found {
		if slices.Contains(outcomes, f.Outcome) {
			n++
		}
	}
	return n
}

func (f *Finding) finish(outcome string, err error) {
	f.Outcome = outcome
	if err != nil {
		f.Outcome, f.Error = Failed, err.Error()
	}
}

// id returns a text that is the same in each scan as long as the holder is the same.
func (f *Finding) id() string {
	if f.holding != nil {
		return strings.Join([]string{string(f.Kind), f.Pool, f.holding.Key, f.ContainerID, f.PodRef, f.IfName}, "|")
	}
	return string(f.Kind) + "|" + f.loose.Metadata.UID
}
