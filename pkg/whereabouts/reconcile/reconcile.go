package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// DefaultGrace is how long something must have been stale before it is freed:
// longer than a runtime's retries of a DEL take, mostly.
const DefaultGrace = time.Minute

// DefaultInterval lies between two looks of a running reconciler at everything.
const DefaultInterval = 10 * time.Minute

// replayTime bounds a replay: while it goes on, the plugins wait for its pool.
const replayTime = 30 * time.Second

// Options say what a [Reconciler] works with.
type Options struct {
	Client *kube.Client
	// Grace lies between the look that first finds something stale and the one
	// that frees it; 0 frees it at once.
	Grace  time.Duration
	DryRun bool // only [Reconciler.Once]: change nothing

	// Of Run only.
	Interval time.Duration // between looks at all there is, DefaultInterval when 0
	Identity string        // of this process in the cluster's Lease; "" = host name and process id

	Journal Journal      // the node's; nil is none
	Log     *slog.Logger // nil is nobody
}

// Journal is what DELs of this node could not free.
type Journal interface {
	// Replay frees it, and returns how many entries are left and why.
	Replay(ctx context.Context) (left int, err error)
}

// Reconciler frees the addresses of pods that are gone, entry and reservation
// together, and mends pairs of which one half is missing.
//
// Twice it must find the same entry, of the same container, without a pod, the
// grace period apart; and it asks for the pod itself right before it frees
// anything. A pod that exists keeps its addresses until its DEL, whether or not
// Multus has annotated it, but for a pod in phase Succeeded or Failed for
// longer than the grace period, and for an entry of a former sandbox: the pod
// is ready, its network-status gives the interface another address, and that
// one the pod holds by an entry of another container.
//
// Each patch tests that the entries are still the same container's, and a
// reservation is deleted only as it was read; so several reconcilers, ADDs and
// whereabouts itself may work at the same time. Placeholders (entries without
// podref), keys that name no address, and holders that are no pods stay.
//
// A Reconciler is not safe for concurrent use.
type Reconciler struct {
	Options
	marks map[string]mark
}

// mark remembers what was found stale.
type mark struct {
	since time.Time
	ref   string
	uid   string // of the pod, "" if it was gone
	told  bool   // by a watch, not by a look
}

// New returns a reconciler. It talks to no server.
func New(o Options) *Reconciler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Identity == "" {
		host, _ := os.Hostname() // the process id alone is also another's, but seldom
		o.Identity = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	return &Reconciler{Options: o, marks: map[string]mark{}}
}

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

// Once looks, waits the grace period if there is a need to, and looks again. It
// gives what the last look found, and an error if that was not everything.
func (r *Reconciler) Once(ctx context.Context) ([]*Finding, error) {
	errs := []error{r.replay(ctx)}
	found, err := r.look(ctx, nil)
	waits := func(f *Finding) bool { return f.Outcome == Waiting }
	if slices.ContainsFunc(found, waits) && !r.DryRun {
		if err := sleep(ctx, r.Grace); err != nil {
			return found, err
		}
		first := found
		found, err = r.look(ctx, nil)
		for _, f := range first { // what the first look has ended is news, too
			if !waits(f) && f.Outcome != Kept {
				found = append(found, f)
			}
		}
	}
	return found, errors.Join(append(errs, err)...)
}

// replay frees what DELs of this node have left to the journal.
func (r *Reconciler) replay(ctx context.Context) error {
	if r.Journal == nil || r.DryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	left, err := r.Journal.Replay(ctx)
	if left > 0 {
		r.Log.Warn("deferred DELs are left", "count", left, "err", err)
	}
	return err
}

// look reads the store, judges it and acts on what is due. told are the pods of
// which a watch has said when they went: then only their holdings are looked
// at, and those that were marked before; nil looks at all. What cannot be read
// is an [oddError], after everything else has been done.
func (r *Reconciler) look(ctx context.Context, told map[string]time.Time) ([]*Finding, error) {
	survey, err := api.Inspect(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	var refs map[string]bool // nil is all
	if told != nil {
		refs = map[string]bool{}
		for ref := range told {
			refs[ref] = true
		}
		for _, m := range r.marks {
			refs[m.ref] = true
		}
	}
	narrow(survey, refs)
	named := map[string]bool{}
	for i := range survey.Holdings {
		named[survey.Holdings[i].PodRef] = true
	}
	for _, l := range survey.Loose {
		named[l.Spec.PodRef] = true
	}
	live, failed, err := livePods(ctx, r.Client, named)
	if err != nil {
		return nil, err
	}
	for ref, err := range failed {
		delete(named, ref)
		survey.Errors = append(survey.Errors, err)
	}
	narrow(survey, named)
	found := judge(survey, live, r.Grace)
	due := r.due(found, live, told, refs)
	if r.DryRun {
		for _, f := range found {
			switch {
			case f.Kind == MissingReservation:
				f.Outcome = WouldMake
			case f.Outcome != Kept:
				f.Outcome = WouldFree
			}
		}
	} else {
		r.act(ctx, survey, due)
	}
	if len(survey.Errors) > 0 {
		return found, oddError{errors.Join(survey.Errors...)}
	}
	return found, nil
}

// oddError is of a look that has seen all but objects that nobody can read, and
// holders that no server can be asked for: another look finds them as they are.
type oddError struct{ error }

func (e oddError) Unwrap() error { return e.error }

// narrow leaves what pods of refs hold (all, if that is nil), and never what
// no pod can hold.
func narrow(s *api.Survey, refs map[string]bool) {
	drop := func(ref string) bool {
		_, _, ok := splitRef(ref)
		return !ok || refs != nil && !refs[ref]
	}
	s.Holdings = slices.DeleteFunc(s.Holdings, func(h api.Holding) bool { return drop(h.PodRef) })
	s.Loose = slices.DeleteFunc(s.Loose, func(l *api.Reservation) bool { return drop(l.Spec.PodRef) })
}

// judge gives what is wrong, with the pods that live.
func judge(s *api.Survey, live map[string]*podState, grace time.Duration) []*Finding {
	type iface struct{ ref, name string }
	holds := map[iface][]*api.Holding{}
	for i := range s.Holdings {
		h := &s.Holdings[i]
		holds[iface{h.PodRef, h.IfName}] = append(holds[iface{h.PodRef, h.IfName}], h)
	}
	var found []*Finding
	for i := range s.Holdings {
		h := &s.Holdings[i]
		f := &Finding{Pool: h.Pool.Name, Address: h.Addr, PodRef: h.PodRef, IfName: h.IfName, ContainerID: h.ContainerID, holding: h}
		if h.Reservation != nil {
			f.Reservation = h.Reservation.Metadata.Name
		}
		for _, other := range holds[iface{h.PodRef, h.IfName}] {
			if other.ContainerID != h.ContainerID {
				f.rivals = append(f.rivals, other.Addr)
			}
		}
		if f.judgeEntry(live[h.PodRef]) {
			found = append(found, f)
		}
	}
	for _, l := range s.Loose {
		f := &Finding{Reservation: l.Metadata.Name, PodRef: l.Spec.PodRef, IfName: l.Spec.IfName, ContainerID: l.Spec.ContainerID, loose: l}
		f.judgeLoose(live[l.Spec.PodRef], s.Claimed[l.Metadata.Name], grace)
		found = append(found, f)
	}
	return found
}

// judgeEntry says whether there is something wrong with f's entry.
func (f *Finding) judgeEntry(p *podState) bool {
	h := f.holding
	switch {
	case p == nil:
		f.Kind, f.Why = StaleEntry, "its pod is gone"
	case p.terminal != "":
		f.Kind, f.Why = StaleEntry, "its pod has ended: "+p.terminal
	case f.former(p):
		f.Kind, f.Why = StaleEntry, "its pod has another address by now"
	case h.Foreign != nil:
		f.Kind, f.Why = ForeignReservation, h.Foreign.Spec.PodRef+" has the reservation of this address"
		f.Reservation, f.Outcome = h.Foreign.Metadata.Name, Kept
	case h.Missing != "":
		f.Kind, f.Why = MissingReservation, "the entry has no reservation, as others of its pool have"
		f.Reservation = h.Missing
	default:
		return false
	}
	return true
}

// former says that the pod's status gives the interface of f's entry other
// addresses, one of which the pod holds by an entry of another container. Of an
// entry that names no interface nobody can tell.
func (f *Finding) former(p *podState) bool {
	given := p.status[f.IfName]
	return f.IfName != "" && len(given) > 0 && !slices.Contains(given, f.Address) &&
		slices.ContainsFunc(f.rivals, func(a netip.Addr) bool { return slices.Contains(given, a) })
}

// judgeLoose judges a reservation without an entry.
func (f *Finding) judgeLoose(p *podState, claimed bool, grace time.Duration) {
	f.Kind = StaleReservation
	switch {
	case p == nil:
		f.Why = "no pool has its address for this pod, which is gone"
	case p.terminal != "":
		f.Why = "no pool has its address for this pod, which has ended: " + p.terminal
	case !claimed && f.unused(p) && time.Since(f.loose.Metadata.CreationTimestamp) >= grace:
		f.Why = "no pool has its address, and the pod's status does not name it"
	default:
		f.Kind, f.Outcome = LooseReservation, Kept
		f.Why = "no pool has its address for this pod, which exists"
	}
}

// unused says that Multus has told p's addresses, and none is that of f's
// reservation.
func (f *Finding) unused(p *podState) bool {
	return p.status != nil && !slices.ContainsFunc(readings(f.Reservation), func(a netip.Addr) bool { return p.names("", a) })
}

// readings gives the addresses that a reservation of the name may be of, in
// whichever address space: dashes stand for several things.
func readings(name string) []netip.Addr {
	var all []netip.Addr
	for {
		if a, ok := api.ReservedAddr("", name); ok {
			all = append(all, a)
		}
		_, rest, more := strings.Cut(name, "-")
		if !more {
			return all
		}
		name = rest
	}
}

// confirmed says whether f still holds, now that its pod has been asked for:
// nil if there is none.
func (f *Finding) confirmed(p *podState) bool {
	switch {
	case f.Kind == MissingReservation:
		return p != nil && p.terminal == ""
	case p == nil:
		return true
	case p.terminal != "":
		return !f.mark.told // the watch told of another pod of this name
	case p.uid != f.mark.uid || !p.settled:
		return false
	case f.loose != nil:
		return f.unused(p)
	}
	return f.former(p)
}

// due marks findings, and gives those that were marked long enough ago. What
// is not found any more is forgotten, if it was looked at.
func (r *Reconciler) due(found []*Finding, live map[string]*podState, told map[string]time.Time, refs map[string]bool) []*Finding {
	now := time.Now()
	seen := map[string]mark{}
	for id, m := range r.marks {
		if refs != nil && !refs[m.ref] {
			seen[id] = m
		}
	}
	var due []*Finding
	for _, f := range found {
		if f.Outcome == Kept {
			continue
		}
		fresh := mark{since: now, ref: f.PodRef}
		if p := live[f.PodRef]; p != nil {
			fresh.uid = p.uid
		} else if t, ok := told[f.PodRef]; ok {
			fresh.since, fresh.told = t, true
		}
		m, ok := r.marks[f.id()]
		if !ok || m.uid != fresh.uid {
			m = fresh
		}
		seen[f.id()], f.mark = m, m
		f.Outcome = Waiting
		if now.Sub(m.since) >= r.Grace {
			due = append(due, f)
		}
	}
	r.marks = seen
	slices.SortStableFunc(due, func(a, b *Finding) int { return cmp.Compare(a.Pool, b.Pool) })
	return due
}

// sleep waits, and gives ctx's error if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// entryAt returns the entry that o has in p at the reservation's address, and whether
// there is one.
func entryAt(p *api.PoolState, reservation string, o ipam.Owner) (api.Entry, bool) {
	for _, addr := range readings(reservation) {
		key, err := p.Key(addr)
		if err != nil || !p.Prefix.Contains(addr) {
			continue
		}
		if e, ok := p.Entries[key]; ok && e.PodRef == o.PodRef && e.IfName == o.IfName {
			return e, true
		}
	}
	return api.Entry{}, false
}
