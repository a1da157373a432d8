package reconcile

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Kind is what a [Finding] is about.
type Kind string

// The kinds of findings.
const (
	// StaleEntry is freed, together with its reservation.
	StaleEntry Kind = "stale entry"
	// StaleReservation has no entry, and is deleted.
	StaleReservation Kind = "stale reservation"
	// MissingReservation is made: the other entries of the pool have theirs.
	MissingReservation Kind = "missing reservation"
	// ForeignReservation stands in the place of the entry's own, and
	// LooseReservation has no entry while its pod lives: for a person to see.
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
	Changed   = "changed meanwhile" // somebody else was quicker
	Failed    = "failed"
)

// Finding is something in the store that is not as it should be, and what
// became of it.
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
	rivals  []netip.Addr // that the same interface holds by another container
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

func (f *Finding) settle(outcome string, err error) {
	f.Outcome = outcome
	if err != nil {
		f.Outcome, f.Error = Failed, err.Error()
	}
}

// id is the same at each look as long as the same holder holds.
func (f *Finding) id() string {
	if f.holding != nil {
		return strings.Join([]string{string(f.Kind), f.Pool, f.holding.Key, f.ContainerID, f.PodRef, f.IfName}, "|")
	}
	return string(f.Kind) + "|" + f.loose.Metadata.UID
}
