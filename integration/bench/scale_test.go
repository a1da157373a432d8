package main

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Two nodes on a real control plane, with each number of pools and of seats.
func TestScaleStartsAPodOnEachNode(t *testing.T) {
	t.Chdir("../..") // of the chart's priority level
	l, err := newScaleLab(t.Context(), places{disk: t.TempDir(), state: t.TempDir()}, 2)
	need.NoError(t, err)
	t.Cleanup(l.plane.Close)
	r := &scaleReport{}
	for _, c := range []scaleCase{{Nodes: 2, Pools: scaleRails, Shares: 3}, {Nodes: 1, Pools: 1, Shares: 1}, {Nodes: 2, Pools: 1, Shares: 1}} {
		got, err := l.run(t.Context(), c, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Ready) != c.Nodes || len(got.Given) != c.Nodes*scaleRails || got.Seats != map[int]int{3: 8, 1: 3}[c.Shares] {
			t.Errorf("%+v: %+v", c, got)
		}
		// Each address is in a pool by a patch of its own, which etcd has written.
		if least := float64(len(got.Given)); float64(got.Patches-got.Refused) < least || got.Tries < least || got.WAL < 100*least || got.CPU[0] == 0 {
			t.Errorf("%+v was not counted: %+v", c, got)
		}
		r.Runs = append(r.Runs, got)
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
	(&scaleRun{lab: l, c: scaleCase{Nodes: 1, Pools: 1}, name: "ended"}).pod(ended, 0)
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

func TestMetricIsTheSumOfWhatHasTheLabels(t *testing.T) {
	const text = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 1e+03\na{x=\"2\"} 7\nab 9\nb 5\n"
	if a, b := metric(text, "a", `x="1"`), metric(text, "b"); a != 1003 || b != 5 {
		t.Errorf("%v and %v", a, b)
	}
}
