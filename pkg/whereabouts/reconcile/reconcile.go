package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// DefaultGrace is the time for which a defect must exist before it is repaired. It is
// longer than the time for which most runtimes retry a DEL.
const DefaultGrace = time.Minute

// DefaultInterval is the time between two full scans of a running reconciler.
const DefaultInterval = 10 * time.Minute

// replayTime bounds a replay, because plugins that need the same pool wait meanwhile.
const replayTime = 30 * time.Second

// Options configures a [Reconciler].
type Options struct {
	Client *kube.Client
	// Grace is the time between the scan that first finds a defect and the scan that
	// repairs it. If it is 0, the first scan repairs the defect.
	Grace  time.Duration
	DryRun bool // change nothing; only for [Reconciler.Once]

	// NodeGrace, Interval, Identity and Surveyed are only for [Reconciler.Run].
	//
	// NodeGrace is used instead of Grace, if it is longer, while a node is not ready, and
	// for a time after a node was removed or Run began. Pods that are gone may still run on
	// such a node. 0 means that Grace is always used.
	NodeGrace time.Duration
	Interval  time.Duration // between full scans, DefaultInterval if 0
	Identity  string        // name of this process in the cluster's Lease; "" means host name and process ID
	// Surveyed is called with what each scan has read of the store, and with nil when
	// another reconciler may lead. It must neither change nor keep the survey. It may be
	// nil.
	Surveyed func(*api.Survey)

	Journal Journal      // the node's journal; nil if there is none
	Log     *slog.Logger // nil if nothing is to be logged
}

// Journal has the addresses that DELs of this node could not free.
type Journal interface {
	// Replay frees these addresses. It returns the number of entries that remain, and the
	// reason why they remain.
	Replay(ctx context.Context) (left int, err error)
}

// Reconciler frees the addresses of pods that are gone, entry and reservation together, and
// completes pairs of which one half is missing.
//
// It frees an entry only if two scans have found the same entry of the same container
// without a pod, at least the grace period apart. Right before it frees the entry, it asks
// the server for the pod. A pod that exists keeps its addresses until its DEL, whether or
// not Multus has annotated it. There are two exceptions: a pod that has been in phase
// Succeeded or Failed for longer than the grace period, and an entry of a former sandbox.
// An entry is of a former sandbox if the pod is ready, its network-status has another
// address for the interface, and the pod holds that address by an entry of another
// container.
//
// Each patch tests that the entries still belong to the same container, and a reservation
// is deleted only if it is unchanged. So several reconcilers, ADDs and whereabouts itself
// may work concurrently. Placeholders (entries without podref), malformed keys, and holders
// that are not pods stay.
//
// The Reconciler leaves the addresses in blocks to the nodes that hold the blocks.
// [Reconciler.Run] frees the blocks of nodes that are gone.
//
// A Reconciler is not safe for concurrent use, except for Ready.
type Reconciler struct {
	Options
	failed atomic.Pointer[error] // result of the last read of the Lease or of the last scan; nil before the first one
	marks  map[string]mark
	nodes  *nodes    // nil if the state of the nodes does not matter
	blocks *Blocks   // nil if blocks are left alone
	next   time.Time // when the first of the marks is due
}

// mark is a finding of an earlier scan.
type mark struct {
	since   time.Time
	ref     string
	uid     string // of the pod, "" if it was gone
	byWatch bool   // found by a watch, not by a scan
}

// New returns a reconciler. It makes no request.
func New(o Options) *Reconciler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Identity == "" {
		host, _ := os.Hostname() // a process on another host may have the same process ID
		o.Identity = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	return &Reconciler{Options: o, marks: map[string]mark{}}
}

var (
	errNotChecked = errors.New("the Lease of the reconcilers was not read yet")
	errNotScanned = errors.New("the addresses of the cluster were not checked yet")
)

// Ready returns nil if Run works. It returns an error until Run has read the Lease once
// and, if it leads, has scanned everything once. Later it returns the error of the last
// read of the Lease, of the last scan of everything or of the last scan, if one of them
// failed.
func (r *Reconciler) Ready() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return errNotChecked
}

// note makes err the result of [Reconciler.Ready]. nil means that Run works.
func (r *Reconciler) note(err error) { r.failed.Store(&err) }

// Once scans, waits the grace period if that is needed, and scans again. It
// returns the findings of the last scan, and an error if that scan was
// incomplete.
func (r *Reconciler) Once(ctx context.Context) ([]*Finding, error) {
	errs := []error{r.replay(ctx)}
	found, err := r.scan(ctx, nil)
	waits := func(f *Finding) bool { return f.Outcome == Waiting }
	if slices.ContainsFunc(found, waits) && !r.DryRun {
		if err := wait.For(ctx, r.Grace); err != nil {
			return found, err
		}
		first := found
		found, err = r.scan(ctx, nil)
		for _, f := range first { // include the findings that the first scan has ended
			if !waits(f) && f.Outcome != Kept {
				found = append(found, f)
			}
		}
	}
	return found, errors.Join(append(errs, err)...)
}

// replay frees the addresses in this node's journal.
func (r *Reconciler) replay(ctx context.Context) error {
	if r.Journal == nil || r.DryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	left, err := r.Journal.Replay(ctx)
	if left > 0 {
		r.Log.Warn("deferred DELs still wait in the journal", "count", left, "err", err)
	}
	return err
}

// scan reads the store, judges it, and repairs what is due. deleted has the pods that ended
// according to a watch. scan then judges only the addresses of these pods and of the pods
// that were marked earlier. If deleted is nil, it judges everything. Errors of unreadable
// objects are returned as an [oddError], after everything else has been done.
func (r *Reconciler) scan(ctx context.Context, deleted map[string]time.Time) ([]*Finding, error) {
	survey, err := api.Inspect(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	r.surveyed(survey)
	var refs map[string]bool // nil is all
	if deleted != nil {
		refs = map[string]bool{}
		for ref := range deleted {
			refs[ref] = true
		}
		for _, m := range r.marks {
			refs[m.ref] = true
		}
	}
	if r.blocks != nil && refs == nil {
		r.blocks.Sync(ctx, r.Client, r.Log, survey.Blocks)
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
	reason := ""
	if r.nodes != nil && (refs == nil || slices.ContainsFunc(found, func(f *Finding) bool { return mayRun(live[f.PodRef]) })) {
		if reason = r.nodes.mayRunBecause(ctx, r.Client); reason != "" {
			r.Log.Debug("pods that are gone may still run", "why", reason)
		}
	}
	due := r.due(found, live, deleted, refs, reason)
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

func (r *Reconciler) surveyed(s *api.Survey) {
	if r.Surveyed != nil {
		r.Surveyed(s)
	}
}

// oddError is the error of a scan that read everything, except for malformed objects and
// for holders whose pod no server can know. Another scan would return the same error.
type oddError struct{ error }

func (e oddError) Unwrap() error { return e.error }

// due marks findings, and returns the findings that were marked long enough ago. If the
// scan has judged an object and has found no defect, due removes the object's mark. reason
// is the reason why pods that are gone may still run.
func (r *Reconciler) due(found []*Finding, live map[string]*podState, deleted map[string]time.Time, refs map[string]bool, reason string) []*Finding {
	now := time.Now()
	r.next = time.Time{}
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
		} else if t, ok := deleted[f.PodRef]; ok {
			fresh.since, fresh.byWatch = t, true
		}
		m, ok := r.marks[f.id()]
		if !ok || m.uid != fresh.uid {
			m = fresh
		}
		seen[f.id()], f.mark = m, m
		f.Outcome = Waiting
		grace := r.Grace
		if reason != "" && mayRun(live[f.PodRef]) {
			grace = max(grace, r.NodeGrace)
			f.Why += ", but may still run: " + reason
		}
		ripe := m.since.Add(grace)
		if !now.Before(ripe) {
			due = append(due, f)
			ripe = now.Add(r.Grace) // if it is not freed now
		}
		if r.next.IsZero() || ripe.Before(r.next) {
			r.next = ripe
		}
	}
	r.marks = seen
	slices.SortStableFunc(due, func(a, b *Finding) int { return cmp.Compare(a.Pool, b.Pool) })
	return due
}
