package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// DefaultGrace is how long something must have been stale before it is freed:
// longer than a runtime's retries of a DEL take, mostly.
const DefaultGrace = time.Minute

// DefaultInterval lies between two looks of a running reconciler at everything.
const DefaultInterval = 10 * time.Minute

// replayTime bounds a replay: while it goes on, the plugins wait for its pool.
const replayTime = 30 * time.Second

// Options are those of a [Reconciler].
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
// It frees an entry only if it has found it twice without a pod, of the same container
// and the grace period apart. Right before that it asks the server for the pod. A pod
// that exists keeps its addresses until its DEL, whether or not Multus has annotated it,
// with two exceptions: a pod that has been in phase Succeeded or Failed for longer than
// the grace period, and an entry of a former sandbox. The latter means that the pod is
// ready, its network-status has another address for the interface, and the pod holds
// that address by an entry of another container.
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

// mark is a finding of an earlier look.
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

// Once looks, waits the grace period if that is needed, and looks again. It returns the
// findings of the last look, and an error if that look did not see everything.
func (r *Reconciler) Once(ctx context.Context) ([]*Finding, error) {
	errs := []error{r.replay(ctx)}
	found, err := r.look(ctx, nil)
	waits := func(f *Finding) bool { return f.Outcome == Waiting }
	if slices.ContainsFunc(found, waits) && !r.DryRun {
		if err := wait.For(ctx, r.Grace); err != nil {
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

// look reads the store, judges it, and frees what is due. told has the pods that ended
// according to a watch: look then judges only their addresses, and what was marked
// before. If told is nil, it judges everything. Objects that cannot be read are returned
// as an [oddError], after everything else has been done.
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

// oddError is the error of a look that saw everything but objects that cannot be read
// and holders whose pod no server can know. Another look would find the same.
type oddError struct{ error }

func (e oddError) Unwrap() error { return e.error }

// due marks findings, and returns those that were marked long enough ago. It forgets
// marks of things that the look has judged and no longer finds.
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
