package keeper

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	usually   = time.Minute      // between runs
	slowEach  = 5                // runs: the slow rules are judged in one of them
	runTime   = 15 * time.Second // for one run's facts
	patchTime = 20 * time.Second
	sample    = time.Second // between two reads of error counters
)

// Options are those of a [Keeper].
type Options struct {
	// Collect has the places of the facts. Sample, Done, Pending and Status are the keeper's.
	Collect collect.Options
	// Read reads the facts; [collect.Node] if it is nil. rail-agent's is that of a
	// [collect.Reader]: what pods have made is not read in its process.
	Read  func(context.Context, collect.Options) *doctor.Facts
	Every time.Duration // between runs; a minute if it is 0
	Log   *slog.Logger
	// Notify passes on notices, if it is not nil.
	Notify func(component.Notice)
	// Status returns the status of the agent of this process, a JSON object.
	Status func() ([]byte, error)
	// Condition writes the condition of the Node, if it is not nil. A nil condition removes it.
	Condition func(context.Context, *Condition) error
	// Leaving: rail-cni is being uninstalled from the node. The condition is removed at once, and not written:
	// when the agent ends it may have lost the right to remove it.
	Leaving bool
}

// Keeper judges the node. Its methods but Run may be called concurrently.
type Keeper struct {
	Options
	pending  collect.Pending
	reporter *component.Reporter

	// Only Run uses these.
	runs       int
	rules      map[string]*watched // by ID
	remembered bool
	condition  conditionState

	mu      sync.Mutex
	metrics metrics
	flaps   flaps
}

// New returns a Keeper. Run must be called once.
func New(o Options) *Keeper {
	k := &Keeper{Options: o, reporter: component.NewReporter("doctor", o.Log, o.Notify), rules: map[string]*watched{}, flaps: flaps{nics: map[string]*carrier{}}}
	if k.Every == 0 {
		k.Every = usually
	}
	if k.Read == nil {
		k.Read = func(ctx context.Context, o collect.Options) *doctor.Facts {
			o.Pending = &k.pending
			return collect.Node(ctx, o)
		}
	}
	return k
}

// Run judges the node until ctx ends, and then removes the condition of the Node, which
// would no longer be kept up to date. It continues after a panic.
func (k *Keeper) Run(ctx context.Context) {
	if k.Leaving {
		k.removeCondition(ctx)
	}
	// The plugins are installed first, and the agents of all nodes start together.
	pause := k.Every/4 + rand.N(k.Every/2)
	for wait.For(ctx, pause) == nil {
		began := time.Now()
		k.step(ctx)
		pause = max(k.Every-time.Since(began), k.Every/2)
	}
	k.removeCondition(ctx)
}

// Rules returns the rules that rail-agent judges: those of nodes and pods, unless they need the
// API server.
func Rules() []doctor.Rule {
	rules := doctor.Select(doctor.Rules(), doctor.NodeScope, doctor.PodScope) // networks are the cluster's
	return slices.DeleteFunc(rules, func(r doctor.Rule) bool { return r.API })
}

// step is one run. A panic ends only this one.
func (k *Keeper) step(ctx context.Context) {
	_ = k.reporter.Contain(func() error { k.judge(ctx); return nil }) // it is reported
}

// judge is step, and may panic.
func (k *Keeper) judge(ctx context.Context) {
	began := time.Now()
	slow := k.runs%slowEach == 0
	k.runs++
	rules := Rules()
	k.remember(rules)
	every := sample
	if !slow {
		every = -1
		rules = slices.DeleteFunc(rules, func(r doctor.Rule) bool { return r.Slow })
	}
	facts := k.facts(ctx, every, false)
	if ctx.Err() != nil {
		return
	}
	results := doctor.Judge(rules, facts)
	k.note(results)
	k.count(results, time.Since(began))
	k.keepCondition(ctx, slow)
}

// Facts returns the facts of the node as a JSON document. It takes more than a second, because
// the error counters are read twice.
func (k *Keeper) Facts(ctx context.Context) ([]byte, error) {
	return json.Marshal(k.facts(ctx, sample, true))
}

// facts returns the facts of the node. If person is true, they include the settings of virtual functions. Several readings may run at a
// time.
func (k *Keeper) facts(ctx context.Context, every time.Duration, person bool) *doctor.Facts {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	o := k.Collect
	o.Sample, o.Functions, o.Pending, o.Done, o.Status = every, person, nil, nil, k.Status
	r := reading{began: time.Now(), changedBefore: k.changed()}
	f := k.Read(ctx, o)
	k.mu.Lock()
	defer k.mu.Unlock()
	r.ended, r.changedAfter = time.Now(), k.changed()
	k.flaps.observe(r, f.NICs)
	return f
}

// changed returns when a record was written or removed last. Each move of a NIC does both.
func (k *Keeper) changed() time.Time {
	info, err := os.Stat(filepath.Join(k.Collect.StateDir, "attachments"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// count sets the metrics. Rules that were not judged in this run keep their status.
func (k *Keeper) count(results []doctor.Result, took time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := map[string]string{}
	for i := range results {
		now[results[i].ID] = string(results[i].Status)
	}
	var all []ruleStatus
	for _, r := range k.metrics.Rules {
		if _, judged := now[r.ID]; !judged {
			all = append(all, r)
		}
	}
	for i := range results {
		all = append(all, ruleStatus{ID: results[i].ID, Status: string(results[i].Status)})
	}
	k.metrics.Rules, k.metrics.Last, k.metrics.Took = all, time.Now(), took
}
