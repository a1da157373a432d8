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
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	usually   = time.Minute      // between runs
	slowEach  = 5                // the slow rules are judged in every fifth run
	runTime   = 15 * time.Second // for reading the facts of one run
	patchTime = 20 * time.Second
	sample    = time.Second // between two reads of error counters
)

// Options are the options of a [Keeper].
type Options struct {
	// Collect has the places of the facts. The keeper sets Sample, Done, Pending and Status itself.
	Collect collect.Options
	// Read reads the facts. If it is nil, the keeper uses [collect.Node]. rail-agent uses the
	// method of a [collect.Reader], so that its own process never reads files and links that pods
	// have made.
	Read  func(context.Context, collect.Options) *fact.Facts
	Every time.Duration // the time between runs; a minute if it is 0
	Log   *slog.Logger
	// Notify is called with each notice, if it is not nil.
	Notify func(component.Notice)
	// Status returns the status of the agent in this process, as a JSON object.
	Status func() ([]byte, error)
	// Condition writes the condition of the Node. If it is called with nil, it removes the
	// condition. If the field Condition is nil, the keeper does not keep a condition.
	Condition func(context.Context, *Condition) error
	// Leaving is true if rail-cni is being uninstalled from the node. Then the keeper removes the condition at the
	// beginning and never writes it. It does not wait for the end, because the agent may have lost the right to remove
	// the condition by then.
	Leaving bool
}

// Keeper judges the node again and again. All its methods except Run may be called concurrently.
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

// New returns a Keeper. The caller must call its method Run once.
func New(o Options) *Keeper {
	k := &Keeper{Options: o, reporter: component.NewReporter("doctor", o.Log, o.Notify), rules: map[string]*watched{}, flaps: flaps{nics: map[string]*carrier{}}}
	if k.Every == 0 {
		k.Every = usually
	}
	if k.Read == nil {
		k.Read = func(ctx context.Context, o collect.Options) *fact.Facts {
			o.Pending = &k.pending
			return collect.Node(ctx, o)
		}
	}
	return k
}

// Run judges the node until ctx ends. Then it removes the condition of the Node, because nobody
// would keep it up to date. Run continues after a panic.
func (k *Keeper) Run(ctx context.Context) {
	if k.Leaving {
		k.removeCondition(ctx)
	}
	// The first run is delayed for a random time: the plugins must be installed first, and the
	// agents of all nodes may start at the same time.
	pause := k.Every/4 + rand.N(k.Every/2)
	for wait.For(ctx, pause) == nil {
		began := time.Now()
		k.step(ctx)
		pause = max(k.Every-time.Since(began), k.Every/2)
	}
	k.removeCondition(ctx)
}

// Rules returns the rules that rail-agent judges. These are the rules about nodes and pods that
// need no facts from the API server.
func Rules() []rule.Rule {
	rules := rule.Select(doctor.Rules(), rule.NodeScope, rule.PodScope) // rules about networks are not for one node
	return slices.DeleteFunc(rules, func(r rule.Rule) bool { return r.API })
}

// step does one run. If the run panics, only this run ends.
func (k *Keeper) step(ctx context.Context) {
	_ = k.reporter.Contain(func() error { k.judge(ctx); return nil }) // the reporter has already reported the error
}

// judge does one run, and may panic.
func (k *Keeper) judge(ctx context.Context) {
	began := time.Now()
	slow := k.runs%slowEach == 0
	k.runs++
	rules := Rules()
	k.remember(rules)
	every := sample
	if !slow {
		every = -1
		rules = slices.DeleteFunc(rules, func(r rule.Rule) bool { return r.Slow })
	}
	facts := k.facts(ctx, every, false)
	if ctx.Err() != nil {
		return
	}
	results := rule.Judge(rules, facts)
	k.note(results)
	k.count(results, time.Since(began))
	k.keepCondition(ctx, slow)
}

// Facts returns the facts of the node as a JSON document. It takes more than a second, because it
// reads the error counters twice.
func (k *Keeper) Facts(ctx context.Context) ([]byte, error) {
	return json.Marshal(k.facts(ctx, sample, true))
}

// facts returns the facts of the node. If person is true, the facts include the settings of virtual functions. Several
// readings may run at the same time.
func (k *Keeper) facts(ctx context.Context, every time.Duration, person bool) *fact.Facts {
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

// changed returns the time when a record was last written or removed. Every move of a NIC writes
// and later removes a record.
func (k *Keeper) changed() time.Time {
	info, err := os.Stat(filepath.Join(k.Collect.StateDir, "attachments"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// count updates the metrics with the results of a run. Rules that were not judged in this run keep
// their status.
func (k *Keeper) count(results []rule.Result, took time.Duration) {
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
