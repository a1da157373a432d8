package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// result returns the result of a rule about the node, with a finding about each object.
func result(id string, status rule.Status, objects ...string) rule.Result {
	r := rule.Result{ID: id, Scope: rule.NodeScope, Status: status, Expects: "All is well.", Cure: "Mend it."}
	for _, o := range objects {
		r.Findings = append(r.Findings, rule.Finding{Object: o, Evidence: "it has no carrier"})
	}
	return r
}

const (
	fails = rule.Status(rule.Fail)
	warns = rule.Status(rule.Warn)
)

// told returns a keeper that passes its notices to the test.
func told(t *testing.T) (k *Keeper, since func() []string) {
	t.Helper()
	var notices []string
	k = New(Options{Log: slog.New(slog.DiscardHandler), Notify: func(n component.Notice) {
		if n.Warning != (n.Reason != "RailProblemSolved") {
			t.Errorf("%+v", n)
		}
		notices = append(notices, n.Reason+" "+n.Message)
	}})
	return k, func() []string { defer func() { notices = nil }(); return notices }
}

func TestOnlyChangesThatLastAreTold(t *testing.T) {
	k, since := told(t)
	const found = "RailProblem NIC-CARRIER: NIC ens1: it has no carrier; Mend it."
	for i, step := range []struct {
		result rule.Result
		want   string // the beginning of the one notice, "" for none
	}{
		{result("NIC-CARRIER", rule.OK), ""},
		{result("NIC-CARRIER", fails, "NIC ens1"), ""},
		{result("NIC-CARRIER", rule.OK), ""}, // for one run
		{result("NIC-CARRIER", fails, "NIC ens1"), ""},
		{result("NIC-CARRIER", fails, "NIC ens1"), found},
		{result("NIC-CARRIER", fails, "NIC ens1"), ""},
		{result("NIC-CARRIER", fails, "NIC ens1", "NIC ens2"), ""},
		{result("NIC-CARRIER", fails, "NIC ens1", "NIC ens2"), "RailProblem NIC-CARRIER: NIC ens2: "},
		{result("NIC-CARRIER", rule.Unknown), ""}, // not known to be over
		{result("NIC-CARRIER", rule.Unknown), ""},
		{result("NIC-CARRIER", fails, "NIC ens2"), ""},
		{result("NIC-CARRIER", fails, "NIC ens2"), ""},
		{result("NIC-CARRIER", rule.OK), ""},
		{result("NIC-CARRIER", fails, "NIC ens2"), ""}, // well for one run
		{result("NIC-CARRIER", rule.OK), ""},
		{result("NIC-CARRIER", rule.OK), "RailProblemSolved NIC-CARRIER: "},
		{result("NIC-CARRIER", rule.OK), ""},
		{result("NIC-CARRIER", fails, "NIC ens1"), ""},
		{result("NIC-CARRIER", fails, "NIC ens1"), found},
	} {
		k.note([]rule.Result{step.result})
		have := since()
		if step.want == "" && len(have) > 0 || step.want != "" && (len(have) != 1 || !strings.HasPrefix(have[0], step.want)) {
			t.Errorf("step %d: %q, not %q", i, have, step.want)
		}
	}
}

func TestNoticesOfARunAreBounded(t *testing.T) {
	k, since := told(t)
	var results []rule.Result
	for i := range 50 {
		var objects []string
		for n := range 100 {
			objects = append(objects, fmt.Sprintf("pod default/p%03d", n))
		}
		results = append(results, result(fmt.Sprintf("POD-%d", i), warns, objects...))
	}
	k.note(results)
	k.note(results)
	have := since()
	if len(have) != maxNotices+1 || !strings.Contains(have[0], "p004: it has no carrier; and 95 more;") || !strings.Contains(have[maxNotices], "40 more rules") {
		t.Errorf("%d notices: %q", len(have), have)
	}
}

func TestConditionIsWrittenWhenItChanges(t *testing.T) {
	k, _ := told(t)
	var written []Condition
	var refuse error
	k.Condition = func(_ context.Context, c *Condition) error { written = append(written, *c); return refuse }
	step := func(slow bool, results ...rule.Result) []Condition {
		written = nil
		k.runs++
		k.note(results)
		k.keepCondition(t.Context(), slow)
		return written
	}
	expect := func(what string, have []Condition, status string, changed bool) {
		t.Helper()
		if status == "" {
			if len(have) > 0 {
				t.Errorf("%s: %+v", what, have)
			}
			return
		}
		if len(have) != 1 || have[0].Type != "RailNetworkReady" || have[0].Status != status || (have[0].Transition != nil) != changed || have[0].Heartbeat.IsZero() {
			t.Errorf("%s: %+v, not %s", what, have, status)
		}
	}
	bad, good := result("NIC-CARRIER", fails, "NIC ens1"), result("NIC-CARRIER", rule.OK)
	pods := result("POD-DOWN", fails, "pod default/a")
	pods.Scope = rule.PodScope
	warning := result("NIC-MTU", warns, "NIC ens1")
	unread := result("NIC-CARRIER", rule.Unknown)
	expect("the first run", step(true, bad, pods, warning), "", false)
	expect("a rule that fails", step(false, bad, pods, warning), "False", true)
	if m := written[0].Message; m != "NIC-CARRIER: NIC ens1: it has no carrier" || written[0].Reason != "RulesFail" {
		t.Errorf("%+v", written[0])
	}
	expect("no change", step(false, bad), "", false)
	expect("a fact is missing", step(false, unread), "", false)
	expect("the heartbeat", step(true, bad), "False", false)
	expect("well for one run", step(false, good), "", false)
	expect("it is well", step(false, good, pods, warning), "True", true)
	refuse = errors.New("forbidden")
	expect("refused", step(true, good), "True", false)
	step(false, bad)
	expect("refused again", step(false, bad), "False", true)
	refuse = nil
	expect("written at last", step(false, bad), "False", true)
	expect("no other change", step(false, bad), "", false)
	expect("it is well again", step(false, good), "", false)
	expect("it is well for two runs", step(false, good), "True", true)
	unsure := result("NIC-MTU", rule.Unknown)
	expect("a fact of a warning is missing", step(false, good, unsure), "", false)
	expect("and stays so", step(false, good, unsure), "", false)
	unread.Missing = []string{"nics (only root can read it)"}
	expect("a fact is missing for one run", step(false, unread), "", false)
	expect("it is not known", step(false, unread), "Unknown", true)
	if c := written[0]; c.Reason != "FactsMissing" || c.Message != "NIC-CARRIER: nics (only root can read it)" {
		t.Errorf("%+v", c)
	}
	expect("it is known", step(false, good), "True", true)
}

func TestConditionIsRemovedAtTheEnd(t *testing.T) {
	k, _ := told(t)
	ends := 0
	k.Condition = func(ctx context.Context, c *Condition) error {
		if c != nil || ctx.Err() != nil {
			t.Errorf("%+v, %v", c, ctx.Err())
		}
		ends++
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k.Run(ctx)
	if ends != 1 {
		t.Errorf("it was removed %d times", ends)
	}
}

// TestConditionIsRemovedAtOnceByAnAgentThatUninstalls: an agent that uninstalls may lose the right
// to remove the condition before the agent ends.
func TestConditionIsRemovedAtOnceByAnAgentThatUninstalls(t *testing.T) {
	k, _ := told(t)
	removed := make(chan struct{}, 2)
	k.Leaving, k.Every = true, time.Hour
	k.Condition = func(_ context.Context, c *Condition) error {
		if c != nil {
			t.Errorf("it is written: %+v", c)
		}
		removed <- struct{}{}
		return nil
	}
	k.runs = inARow
	k.keepCondition(t.Context(), false)
	if k.keepCondition(t.Context(), true); len(removed) != 1 {
		t.Errorf("the slow rules remove it %d times, in case it was not removed before", len(removed))
	}
	<-removed
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Run(ctx)
	}()
	select {
	case <-removed:
	case <-time.After(time.Minute):
		t.Error("it is not removed")
	}
	cancel()
	<-ended
}

func TestAgentThatStartsAgainRemembersWhatItTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	start := func() (*Keeper, func() []string) {
		k, since := told(t)
		k.Collect.StateDir = dir
		k.remember(Rules())
		return k, since
	}
	bad := []rule.Result{result("NIC-CARRIER", fails, "NIC ens1", "NIC ens2"), result("GONE-RULE", fails, "x")}
	k, since := start()
	k.note(bad)
	k.note(bad)
	if have := since(); len(have) != 2 {
		t.Fatalf("%q", have)
	}
	k, since = start()
	if k.rules["GONE-RULE"] != nil || k.judged().Status != "False" {
		t.Errorf("%v, %+v", k.rules, k.judged())
	}
	one := []rule.Result{result("NIC-CARRIER", fails, "NIC ens2")}
	for range 3 {
		k.note(one)
	}
	if have := since(); len(have) != 0 {
		t.Errorf("it is told again: %q", have)
	}
	k, since = start()
	for range 3 {
		k.note([]rule.Result{result("NIC-CARRIER", rule.OK)})
	}
	if have := since(); len(have) != 1 || !strings.HasPrefix(have[0], "RailProblemSolved NIC-CARRIER") {
		t.Errorf("its end: %q", have)
	}
	if k, _ = start(); len(k.rules) != 0 {
		t.Errorf("what is over is remembered: %v", k.rules)
	}
	if err := os.WriteFile(filepath.Join(dir, memoryFile), []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, since = start(); len(k.rules) != 0 {
		t.Errorf("%v", k.rules)
	}
	k.note(one)
	k.note(one)
	if have := since(); len(have) != 1 {
		t.Errorf("after a broken file: %q", have)
	}
}

// TestFactsAreCompleteWhenReadSeveralTimesAtOnce: somebody may ask for the facts while the agent
// judges its node.
func TestFactsAreCompleteWhenReadSeveralTimesAtOnce(t *testing.T) {
	need.Root(t) // to read the list of NICs
	k, _ := told(t)
	k.Collect = collect.Options{StateDir: filepath.Join(t.TempDir(), "state")}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if f := k.facts(t.Context(), -1, false); !f.Host.Kernel.OK() || !f.NICs.List.OK() {
				t.Errorf("%+v", f)
			}
		})
	}
	all.Wait()
}

// TestFactsOfTheAgentAreThoseOfThisProcess: rail-agent may have no socket at which it could ask
// itself for its status.
func TestFactsOfTheAgentAreThoseOfThisProcess(t *testing.T) {
	k, _ := told(t)
	k.Collect = collect.Options{StateDir: filepath.Join(t.TempDir(), "state"), Socket: "", Version: "v7"}
	k.Status = func() ([]byte, error) {
		return json.Marshal(local.Status{Version: "v7", NRI: true, StateDirs: []local.StateDir{{Ending: []local.Ending{{Error: "busy"}, {}}}}})
	}
	a := k.facts(t.Context(), -1, false).Agent
	if !a.Running.Value || a.Version.Value != "v7" || !a.NRI.Value || !a.Memlock.OK() || a.NotReturned.Value != 1 {
		t.Errorf("%+v", a)
	}
}

func TestConditionsMessageIsBounded(t *testing.T) {
	if have := cut(strings.Repeat("ö", 1000)); len(have) > maxMessage || !strings.HasSuffix(have, "ö …") {
		t.Errorf("%d bytes: %q", len(have), have)
	}
}

func TestFlapsAreLossesThatNobodyCaused(t *testing.T) {
	f := flaps{nics: map[string]*carrier{}}
	start := time.Now()
	at, record := start, start
	observe := func(after time.Duration, count uint64, holder string, up, moved bool) fact.Flaps {
		t.Helper()
		at = at.Add(after)
		if moved {
			record = at
		}
		nics := &fact.NICs{List: fact.Known([]fact.NIC{{
			Name: "ens1", PCI: "0000:01:00.0", Holder: holder, CarrierDown: fact.Known(count, "test"), AdminUp: fact.Known(up, "test"),
		}}, "test")}
		f.observe(reading{at, at, record, record}, nics)
		if !nics.List.Value[0].Flaps.OK() {
			t.Fatalf("%+v", nics.List.Value[0].Flaps)
		}
		return nics.List.Value[0].Flaps.Value
	}
	for i, step := range []struct {
		after     time.Duration
		count     uint64
		holder    string
		up, moved bool
		want      int
	}{
		{0, 5, "", true, false, 0}, // what was before is not known
		{time.Minute, 7, "", true, false, 0},
		{time.Minute, 7, "", true, false, 2},
		{time.Minute, 8, "default/a", true, true, 2}, // lent
		{time.Minute, 8, "default/a", true, false, 2},
		{time.Minute, 9, "default/a", true, false, 2},
		{time.Minute, 9, "default/a", true, false, 3}, // in the pod
		{time.Minute, 10, "default/a", true, false, 3},
		{time.Minute, 10, "", true, true, 3}, // that loss was the pod's end
		{time.Minute, 10, "", true, false, 3},
		{time.Minute, 12, "", true, true, 3}, // a short pod
		{time.Minute, 12, "", true, false, 3},
		{time.Minute, 13, "", false, false, 3},
		{time.Minute, 13, "", true, false, 3}, // an administrator
		{time.Minute, 0, "", true, false, 3},  // its driver has re-created it
		{time.Minute, 0, "", true, false, 3},
		{11*time.Hour + 40*time.Minute, 0, "", true, false, 3},
		{10 * time.Minute, 0, "", true, false, 1},
		{time.Hour, 0, "", true, false, 0},
	} {
		have := observe(step.after, step.count, step.holder, step.up, step.moved)
		if have.Count != step.want {
			t.Errorf("step %d: %+v, not %d", i, have, step.want)
		}
	}
	if have := observe(time.Minute, 0, "", true, false); have.Seconds != (12 * time.Hour).Seconds() {
		t.Errorf("%+v", have)
	}
	f.observe(reading{at, at, record, record}, &fact.NICs{List: fact.Known([]fact.NIC{}, "test")})
	if len(f.nics) != 0 {
		t.Errorf("NICs that are gone: %v", f.nics)
	}
}

// TestLossIsCountedOnceWhenReadingsOverlap: somebody asks for the facts while rail-agent judges the
// node. The reading that ends first need not be the one that read the NIC first.
func TestLossIsCountedOnceWhenReadingsOverlap(t *testing.T) {
	f, start := flaps{nics: map[string]*carrier{}}, time.Now()
	observe := func(began, ended int, count uint64) int {
		t.Helper()
		nics := &fact.NICs{List: fact.Known([]fact.NIC{{Name: "ens1", CarrierDown: fact.Known(count, "test"), AdminUp: fact.Known(true, "test")}}, "test")}
		f.observe(reading{start.Add(time.Duration(began) * time.Second), start.Add(time.Duration(ended) * time.Second), start, start}, nics)
		return nics.List.Value[0].Flaps.Value.Count
	}
	for i, step := range []struct {
		began, ended int
		count        uint64
		want         int
	}{
		{0, 1, 5, 0},
		{60, 61, 6, 0},
		{59, 62, 5, 0}, // it read the NIC before the loss
		{120, 121, 6, 1},
		{180, 181, 6, 1},
		{180, 182, 7, 1}, // it read the NIC after the next loss
		{240, 241, 7, 1},
		{300, 301, 7, 2},
	} {
		if have := observe(step.began, step.ended, step.count); have != step.want {
			t.Errorf("step %d: %d losses, want %d", i, have, step.want)
		}
	}
}

func TestPanicDoesNotEndTheDoctor(t *testing.T) {
	k, since := told(t)
	k.rules = nil // so that note panics
	k.Collect = collect.Options{StateDir: filepath.Join(t.TempDir(), "state")}
	k.step(t.Context())
	k.step(t.Context())
	if have := since(); len(have) != 1 || !strings.HasPrefix(have[0], "ComponentPanicked") || k.reporter.Panics() != 2 {
		t.Errorf("%q, %+v", have, k.read())
	}
}

func TestFastRunsReadNothingThatOnlySlowRulesNeed(t *testing.T) {
	k, _ := told(t)
	k.Collect = collect.Options{StateDir: filepath.Join(t.TempDir(), "state")}
	f := k.facts(t.Context(), -1, false)
	if f.CNI.Binaries.OK() || f.Host.DMABuf.OK() {
		t.Errorf("%+v, %+v", f.CNI.Binaries, f.Host.DMABuf)
	}
	for _, r := range rule.Judge(slices.DeleteFunc(Rules(), func(r rule.Rule) bool { return r.Slow }), f) {
		if slices.ContainsFunc(r.Missing, func(m string) bool { return strings.Contains(m, "not collected") }) {
			t.Errorf("%s lacks %q", r.ID, r.Missing)
		}
	}
}

func TestSlowRulesAreJudgedInOneOfFiveRuns(t *testing.T) {
	k, _ := told(t)
	k.Collect = collect.Options{StateDir: filepath.Join(t.TempDir(), "state"), Version: "v7", Node: "node-a"}
	k.Status = func() ([]byte, error) { return json.Marshal(local.Status{Version: "v7"}) }
	k.runs = 1
	k.step(t.Context())
	judged := func(id string) bool {
		return slices.ContainsFunc(k.read().Rules, func(r ruleStatus) bool { return r.ID == id && r.Status != "" })
	}
	if !judged("NIC-CARRIER") || judged("NIC-BER") || judged("CLUSTER-MTU") || k.read().Last.IsZero() {
		t.Errorf("a fast run: %+v", k.read())
	}
	k.runs = slowEach
	k.step(t.Context())
	all := k.read().Rules
	if !judged("NIC-CARRIER") || !judged("NIC-BER") {
		t.Errorf("a slow run: %+v", all)
	}
	k.step(t.Context())
	if !judged("NIC-BER") || len(k.read().Rules) != len(all) {
		t.Errorf("after it: %+v", k.read().Rules)
	}
	text, err := k.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var f fact.Facts
	if err := json.Unmarshal(text, &f); err != nil || f.Node != "node-a" || !f.Agent.Running.Value || f.Agent.Version.Value != "v7" {
		t.Errorf("%v, %+v", err, f.Agent)
	}
}

// TestLaterProblemsOfAnObjectAreTold: a rule may find several problems of one object, for example
// in several files of the node or on several interfaces of a pod.
func TestLaterProblemsOfAnObjectAreTold(t *testing.T) {
	k, since := told(t)
	unreadable := func(files ...string) []rule.Result {
		f := &fact.Facts{Ledger: &fact.Ledger{Unreadable: fact.Known(files, "test")}}
		return rule.Judge(slices.DeleteFunc(Rules(), func(r rule.Rule) bool { return r.ID != "LEDGER-UNREADABLE" }), f)
	}
	down := func(names ...string) []rule.Result {
		var interfaces []fact.Interface
		for _, name := range names {
			interfaces = append(interfaces, fact.Interface{Name: name, NIC: "ens" + name, Up: true})
		}
		f := &fact.Facts{Pods: []fact.Pod{{Namespace: "default", Name: "a", Interfaces: fact.Known(interfaces, "test")}}}
		return rule.Judge(slices.DeleteFunc(Rules(), func(r rule.Rule) bool { return r.ID != "POD-DOWN" }), f)
	}
	for i, step := range []struct {
		results []rule.Result
		want    string // the beginning of the one notice, "" for none
	}{
		{unreadable("a.json is bad"), ""},
		{unreadable("a.json is bad"), "RailProblem LEDGER-UNREADABLE: a.json is bad; "},
		{unreadable("a.json is bad", "b.json is bad"), ""},
		{unreadable("a.json is bad", "b.json is bad"), "RailProblem LEDGER-UNREADABLE: b.json is bad; "},
		{unreadable("b.json is bad"), ""},
		{unreadable("b.json is bad"), ""},
		{unreadable(), ""},
		{unreadable(), "RailProblemSolved LEDGER-UNREADABLE"},
		{down("net1"), ""},
		{down("net1"), "RailProblem POD-DOWN: pod default/a: net1 has no carrier; "},
		{down("net1", "net2"), ""},
		{down("net1", "net2"), "RailProblem POD-DOWN: pod default/a: net2 has no carrier; "},
	} {
		k.note(step.results)
		have := since()
		if step.want == "" && len(have) > 0 || step.want != "" && (len(have) != 1 || !strings.HasPrefix(have[0], step.want)) {
			t.Errorf("step %d: %q, not %q", i, have, step.want)
		}
	}
}
