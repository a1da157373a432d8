package main

import (
	"context"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Two nodes on a real control plane, with each number of pools and of seats, and with blocks.
func TestScaleStartsAPodOnEachNode(t *testing.T) {
	t.Chdir("../..") // of the chart's priority level
	l, err := newScaleLab(t.Context(), places{disk: t.TempDir(), state: t.TempDir()})
	need.NoError(t, err)
	t.Cleanup(l.plane.Close)
	r := &scaleReport{}
	for _, c := range []scaleCase{
		{Nodes: 2, Pools: scaleRails, Shares: 3},
		{Nodes: 1, Pools: 1, Shares: 1},
		{Nodes: 2, Pools: 1, Shares: 1},
		{Nodes: 2, Pools: scaleRails, Shares: 1, Block: 4},
		{Nodes: 2, Pools: 1, Shares: 1, Block: 16},
	} {
		began := time.Now()
		all, err := l.run(t.Context(), c, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range all {
			if len(got.Ready) != c.Nodes || len(got.Given) != c.Nodes*scaleRails || got.Seats != map[int]int{3: 8, 1: 3}[c.Shares] || got.CPU[2] == 0 {
				t.Errorf("%+v: %+v", c, got)
			}
			r.add(got)
		}
		if c.Block > 0 {
			checkBlocks(t, l, c, all, began)
			continue
		}
		// Each address is in a pool by a patch of its own, which etcd has written.
		got := all[0]
		if least := float64(len(got.Given)); len(all) != 1 || float64(got.Patches-got.refused()) < least || got.Tries < least || got.WAL < 100*least || got.CPU[0] == 0 {
			t.Errorf("%+v was not counted: %+v", c, got)
		}
	}
	dir := t.TempDir()
	if err := r.publish(dir); err != nil {
		t.Fatal(err)
	}
	again := &scaleReport{}
	if again.keep(dir + "/scale.json"); len(again.Runs) != len(r.Runs) {
		t.Errorf("%d runs are kept, want %d", len(again.Runs), len(r.Runs))
	}
	// After its time no pod tries again.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	(&scaleRun{lab: l, c: scaleCase{Nodes: 1, Pools: 1}, name: "ended"}).newBurst().pod(ended, 0)
}

// checkBlocks looks at the requests of a case with blocks, which began at a time.
func checkBlocks(t *testing.T, l *scaleLab, c scaleCase, all []*scaleResult, began time.Time) {
	t.Helper()
	if len(all) != 2 || all[0].Again || !all[1].Again {
		t.Fatalf("%+v: %d runs", c, len(all))
	}
	first, again := all[0], all[1]
	if first.Creates < c.Nodes*c.Pools || first.Gets == 0 || first.Patches != 0 || first.WAL == 0 {
		t.Errorf("%+v, first pods: %+v", c, first)
	}
	if again.Creates+again.Gets+again.Patches != 0 {
		t.Errorf("%+v, claimed before: %+v", c, again)
	}
	// Nobody else made requests than the first pods and what made the pools: no DEL did.
	requests, err := l.plane.Requests(t.Context(), began)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, q := range requests {
		if q.UserAgent == "node" {
			count++
		}
	}
	if most := first.Creates + first.Gets + 2*c.Pools; count > most {
		t.Errorf("%+v: %d requests, want no more than %d", c, count, most)
	}
}

func TestFlagsChooseTheCasesOfScale(t *testing.T) {
	for _, c := range []struct {
		nodes, lines, shares string
		want                 []scaleCase
	}{
		{"10", "blocks", "1", []scaleCase{{Nodes: 10, Pools: 1, Block: 16, Shares: 1}, {Nodes: 10, Pools: 8, Block: 4, Shares: 1}}},
		{"10,1000", "rails-entries,one-blocks", "3,1", []scaleCase{
			{Nodes: 10, Pools: 8, Shares: 3},
			{Nodes: 10, Pools: 8, Shares: 1},
			{Nodes: 10, Pools: 1, Block: 16, Shares: 1},
			{Nodes: 1000, Pools: 1, Block: 16, Shares: 1},
		}},
		{"1000", "entries", "1", nil},
		{"10", "entries,boxes", "1", nil},
		{"10", "", "1", nil},
		{"0", "blocks", "1", nil},
	} {
		got, err := scaleCases(options{nodes: c.nodes, lines: c.lines, shares: c.shares})
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("-nodes %s -lines %s -shares %s: %+v, %v", c.nodes, c.lines, c.shares, got, err)
		}
	}
}

func TestReportOfScaleHasEachCaseOnce(t *testing.T) {
	entries, blocks := scaleCase{Nodes: 200, Pools: 1, Shares: 1, Seats: 3}, scaleCase{Nodes: 200, Pools: 1, Block: 16, Shares: 1}
	again, many := blocks, blocks
	again.Again, many.Nodes = true, 1000
	r := &scaleReport{}
	for _, c := range []scaleCase{entries, blocks, again, many, entries} {
		run := &scaleResult{scaleCase: c, Creates: 200, Gets: 400, Refused: map[int]int{422: 7, 409: 1}, Renewals: []float64{0.03, 0.02, 0.01}}
		for i := range c.Nodes * scaleRails {
			run.Given = append(run.Given, float64(i+1)/100)
		}
		run.Ready = run.Given[:c.Nodes]
		r.add(run)
	}
	dir := t.TempDir()
	if err := r.publish(dir); err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile(dir + "/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		"| 200 nodes, one pool, entry by entry, 3 seats | 200 |", "| 200 nodes, one pool, blocks of 16, first pods | 200 |",
		"| 200 nodes, one pool, blocks of 16, claimed before | 200 |", "| 1000 nodes, one pool, blocks of 16, first pods | 1000 |",
	} {
		if n := strings.Count(string(md), words); n != 1 {
			t.Errorf("%q is there %d times:\n%s", words, n, md)
		}
	}
	cell := func(head string) string { return r.table().rows[0][slices.Index(r.table().head, head)] }
	for head, want := range map[string]string{
		"creates an address": "0.12", "gets an address": "0.25", "refused by code": "409: 1, 422: 7",
		"lease renewal p50 ms": "20", "longest ms": "30",
	} {
		if got := cell(head); got != want {
			t.Errorf("%s: %s, want %s", head, got, want)
		}
	}
	// Most lines have 200 nodes, so these are in the picture over time.
	if nodes := r.usualNodes(); nodes != 200 || len(r.overTime(nodes)) != 3 {
		t.Errorf("%d nodes are usual, with %d lines", nodes, len(r.overTime(nodes)))
	}
}

func TestModelOfScaleFindsTheCostsOfWhatItMade(t *testing.T) {
	for _, want := range []scaleModel{{0.01, 5e-6}, {0.01, 0}, {0, 5e-6}} {
		var runs []*scaleResult
		for _, nodes := range []int{10, 50, 200} {
			c := scaleCase{Nodes: nodes, Pools: 1}
			runs = append(runs, &scaleResult{scaleCase: c, Given: []float64{want.last(c)}})
		}
		if got := fit(runs); math.Abs(got.fixed-want.fixed) > 1e-9 || math.Abs(got.entry-want.entry) > 1e-12 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// scaleRunOf returns a run that gave its addresses in a time, with so many pods ready.
func scaleRunOf(c scaleCase, seconds float64, ready int) *scaleResult {
	run := &scaleResult{scaleCase: c, Ready: make([]float64, ready)}
	for range c.Nodes * scaleRails {
		run.Given = append(run.Given, seconds)
	}
	return run
}

func TestGoalsOfScale(t *testing.T) {
	entries, blocks := scaleCase{Pools: 1, Seats: 3}, scaleCase{Pools: 1, Block: 16}
	rails, again := scaleCase{Pools: scaleRails, Block: 4}, scaleCase{Pools: 1, Block: 16, Again: true}
	r := &scaleReport{}
	add := func(c scaleCase, nodes int, perSecond float64, failed int) {
		c.Nodes = nodes
		run := scaleRunOf(c, float64(nodes*scaleRails)/perSecond, nodes)
		run.Sandboxes = failed
		r.add(run)
	}
	// Goodput falls twice: the best is not that of 50 nodes, and 200 nodes have half of it.
	add(entries, 10, 100, 0)
	add(entries, 50, 60, 0)
	add(entries, 200, 50, 0)
	// 50 and 200 nodes count, though there are more; all get ready, after failures.
	add(blocks, 10, 90, 0)
	add(blocks, 50, 100, 0)
	add(blocks, 200, 90, 3)
	add(blocks, 1000, 10, 0)
	// Without 50 nodes the largest counts, and all that have fewer.
	add(rails, 10, 100, 0)
	add(rails, 250, 200, 0)
	add(rails, 200, 100, 0)
	add(rails, 1000, 180, 0)
	// No number is four times another.
	add(again, 10, 100, 0)
	add(again, 39, 100, 0)
	want := map[string]string{
		"one pool, entry by entry, 3 seats, 50 to 200 nodes: addresses/s at 200 over the best at fewer":           "MISSED by 0.40 × (44 %)",
		"one pool, blocks of 16, first pods, 50 to 200 nodes: addresses/s at 200 over the best at fewer":          "met",
		"a pool per rail, blocks of 4, first pods, 250 to 1000 nodes: addresses/s at 1000 over the best at fewer": "met",
		"one pool, blocks of 16, claimed before: addresses/s under load, over the best at fewer nodes":            "not measured",
		"one pool, blocks of 16, first pods: of 200 nodes ready, less sandboxes failed":                           "MISSED by 3.00 nodes (2 %)",
		"a pool per rail, blocks of 4, first pods: of 200 nodes ready, less sandboxes failed":                     "met",
	}
	got := map[string]string{}
	for _, v := range r.verdicts() {
		got[v.Goal] = v.String()
	}
	if !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	need.NoError(t, r.publish(t.TempDir()))
}

func TestGoalsOfScaleNeedWhatTheyCompare(t *testing.T) {
	c := scaleCase{Pools: 1, Block: 16}
	few, many := c, c
	few.Nodes, many.Nodes = 50, 200
	nothing := &scaleResult{scaleCase: many}
	for _, runs := range [][]*scaleResult{
		{{scaleCase: few}, scaleRunOf(many, 1, 200)}, // fewer nodes got no address
		{scaleRunOf(few, 1, 50)},
	} {
		if v := judgeKept("", runs); v.Met || v.String() != "not measured" {
			t.Errorf("%d runs: %+v", len(runs), v)
		}
	}
	if v := judgeKept("", []*scaleResult{scaleRunOf(few, 1, 50), nothing}); v.Met || v.Measured != 0 || v.String() != "MISSED by 0.90 × (100 %)" {
		t.Errorf("many nodes got no address: %+v", v)
	}
	if v := judgeReady("", []*scaleResult{scaleRunOf(few, 1, 50)}); v.Met || v.String() != "not measured" {
		t.Errorf("without 200 nodes: %+v", v)
	}
	if v := judgeReady("", []*scaleResult{scaleRunOf(many, 1, 199)}); v.Met || v.Measured != 199 {
		t.Errorf("one node is not ready: %+v", v)
	}
}

func TestModelOfScalePredictsFromThreeRuns(t *testing.T) {
	want := scaleModel{0.01, 0}
	r := &scaleReport{}
	for _, nodes := range []int{10, 50, 200} {
		for _, c := range []scaleCase{{Nodes: nodes, Pools: scaleRails, Seats: 3}, {Nodes: nodes, Pools: 1, Seats: 3}} {
			run := scaleRunOf(c, want.last(c), nodes)
			if c.Pools == 1 && nodes == 200 {
				run.Ready = run.Ready[:2] // it was ended, and is no point of the model
			}
			r.add(run)
		}
	}
	r.add(scaleRunOf(scaleCase{Nodes: 10, Pools: 1, Block: 16}, 1, 10))
	model, _ := r.model()
	var cells []string
	for _, row := range model.rows {
		cells = append(cells, strings.Join(append(row[:1:1], row[4:]...), ": "))
	}
	if !slices.Equal(cells, []string{
		"a pool per rail, entry by entry, 3 seats: 80.0 s: 400.0 s",
		"one pool, entry by entry, 3 seats: too few runs: too few runs",
	}) {
		t.Errorf("%q", cells)
	}
}

func TestMetricIsTheSumOfWhatHasTheLabels(t *testing.T) {
	const text = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 1e+03\na{x=\"2\"} 7\nab 9\nb 5\n"
	if a, b := metric(text, "a", `x="1"`), metric(text, "b"); a != 1003 || b != 5 {
		t.Errorf("%v and %v", a, b)
	}
}
