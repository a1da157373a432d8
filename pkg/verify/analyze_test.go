package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// told returns the findings as "kind: end, end" or "kind: end or end".
func told(r *Result) (all []string) {
	for _, f := range r.Findings {
		var ends []string
		for _, e := range f.Ends {
			ends = append(ends, fmt.Sprintf("%s/%d", e.Node, e.Rail))
		}
		join := ", "
		if f.Either {
			join = " or "
		}
		all = append(all, string(f.Kind)+": "+strings.Join(ends, join))
	}
	return all
}

func TestHealthyNoiseHasNoFinding(t *testing.T) {
	for size, seeds := range map[[2]int]uint64{{2, 8}: 25, {3, 1}: 25, {5, 4}: 10, {16, 8}: 2} {
		for seed := range seeds {
			r, err := newFabric(size[0], size[1], seed).run(Options{Fabric: Isolated})
			if err != nil || r.Status != Healthy || len(r.Findings) > 0 || r.ExitCode() != ExitHealthy {
				t.Fatalf("%v, seed %d: %v, %s: %+v", size, seed, err, r.Status, r.Findings)
			}
		}
	}
}

// TestPathsWhoseAnswersAreLateAreMeasuredAgain: for some seconds, a busy machine may answer all
// probes of some paths too late.
func TestPathsWhoseAnswersAreLateAreMeasuredAgain(t *testing.T) {
	const flows = 2 * 8 * 2 // of the first round, with short and with full packets
	for stalls, want := range map[int]Status{1: Healthy, flows / 2: Healthy, 2 * flows: Healthy, 100 * flows: Unknown} {
		f := newFabric(2, 8, 1)
		f.stalls = stalls
		r, err := f.run(Options{})
		if err != nil || r.Status != want || len(r.Findings) > 0 {
			t.Errorf("%d flows stall: %v, %s: %+v", stalls, err, r.Status, r.Findings)
		}
	}
	f := newFabric(2, 8, 1)
	f.stalls, f.defects[End{"n1", 3}] = flows, defect{loss: 0.1}
	r, err := f.run(Options{})
	if err != nil || !slices.Equal(told(r), []string{"loss: n1/3"}) {
		t.Errorf("with a loss: %v, %q", err, told(r))
	}
}

func TestDefectsAreNamedByNodeAndRail(t *testing.T) {
	bad := End{"n1", 3}
	for name, c := range map[string]struct {
		defects map[End]defect
		wired   map[End]int
		unknown bool
		two     []string // of two nodes
		five    []string // of five nodes; those of two if nil
	}{
		"MTU of an interface": {defects: map[End]defect{bad: {mtu: 1500}}, two: []string{"mtu: n1/3"}},
		"MTU of a switch's port": {
			defects: map[End]defect{bad: {portMTU: 1500}},
			two:     []string{"mtu: n0/3 or n1/3"}, five: []string{"mtu: n1/3"},
		},
		"loss in a node": {defects: map[End]defect{bad: {loss: 0.1}}, two: []string{"loss: n1/3"}},
		"loss of a cable": {
			defects: map[End]defect{bad: {cable: 0.1}},
			two:     []string{"loss: n0/3 or n1/3"}, five: []string{"loss: n1/3"},
		},
		"delay in a node": {defects: map[End]defect{bad: {delay: 5000}}, two: []string{"latency: n1/3"}},
		"delay of a cable": {
			defects: map[End]defect{bad: {cableWait: 200}},
			two:     []string{"latency: n0/3 or n1/3"}, five: []string{"latency: n1/3"},
		},
		"delay in a node whose kernel reports no times": {
			unknown: true, defects: map[End]defect{bad: {delay: 5000}},
			two: []string{"latency: n0/3 or n1/3"}, five: []string{"latency: n1/3"},
		},
		"loss in a node whose kernel reports no times": {
			unknown: true, defects: map[End]defect{bad: {loss: 0.2}},
			two: []string{"loss: n0/3 or n1/3"}, five: []string{"loss: n1/3"},
		},
		"two rails swapped": {
			wired: map[End]int{bad: 5, {"n1", 5}: 3},
			two:   []string{"swapped: n0/3 or n0/5 or n1/3 or n1/5"}, five: []string{"swapped: n1/3, n1/5"},
		},
		"a cut cable": {
			wired: map[End]int{bad: 99},
			two:   []string{"unreachable: n0/3 or n1/3"}, five: []string{"unreachable: n1/3"},
		},
		"an interface that is down":          {defects: map[End]defect{bad: {problem: "it is down"}}, two: []string{"down: n1/3"}},
		"packets that leave by another rail": {defects: map[End]defect{bad: {leaves: "net1"}}, two: []string{"route: n1/3"}},
		"two defects": {
			defects: map[End]defect{bad: {loss: 0.2}, {"n0", 6}: {delay: 3000}},
			two:     []string{"loss: n1/3", "latency: n0/6"},
		},
		"two defects of one end": {
			defects: map[End]defect{bad: {loss: 0.2, delay: 3000}},
			two:     []string{"loss: n1/3", "latency: n1/3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for nodes, want := range map[int][]string{2: c.two, 5: c.five} {
				if want == nil {
					want = c.two
				}
				for seed := range uint64(5) {
					f := newFabric(nodes, 8, seed)
					f.unknown = c.unknown
					if c.defects != nil {
						f.defects = c.defects
					}
					if c.wired != nil {
						f.wired = c.wired
					}
					r, err := f.run(Options{Fabric: Isolated})
					if err != nil {
						t.Fatal(err)
					}
					if have := told(r); !slices.Equal(have, want) || r.Status != Defects || r.ExitCode() != ExitDefects {
						t.Errorf("%d nodes, seed %d: %s\n%q\nnot\n%q\n%+v", nodes, seed, r.Status, have, want, r.Findings)
					}
				}
			}
		})
	}
}

func TestValueStandsBesideTheMedian(t *testing.T) {
	f := newFabric(4, 4, 1)
	f.defects[End{"n2", 1}] = defect{delay: 5000}
	r, err := f.run(Options{})
	if err != nil || len(r.Findings) != 1 {
		t.Fatalf("%v, %+v", err, r.Findings)
	}
	if x := r.Findings[0]; x.Unit != "µs" || x.Value < 5000 || x.Value > 5200 || x.Median < 30 || x.Median > 60 {
		t.Errorf("%+v", x)
	}
}

func TestRailThatIsBadOnAllNodesIsOneFinding(t *testing.T) {
	f := newFabric(6, 4, 1)
	for n := range 6 {
		f.defects[End{f.name(n), 2}] = defect{cableWait: 400}
	}
	r, err := f.run(Options{})
	if err != nil || len(r.Findings) != 1 || len(r.Findings[0].Ends) != 6 {
		t.Fatalf("%v, %+v", err, r.Findings)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "LATENCY  rail 2 of all nodes: ") {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestIsolatedRailsMustNotReachEachOther(t *testing.T) {
	for fabric, want := range map[string]int{Isolated: 3, Routed: 0, Flat: 0, "": 0} { // 3 pairs of rails
		f := newFabric(3, 3, 1)
		f.leaks = true
		r, err := f.run(Options{Fabric: fabric})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Findings) != want {
			t.Errorf("fabric %q: %q", fabric, told(r))
		}
		for _, x := range r.Findings {
			if x.Kind != KindCrossed {
				t.Errorf("fabric %q: %+v", fabric, x)
			}
		}
	}
}

func TestNodeThatCannotBeMeasuredIsUnknown(t *testing.T) {
	f := newFabric(3, 2, 1)
	nodes := []Node{{Name: "n0", Prober: &simulated{f, 0}}, {Name: "n1", Prober: &simulated{f, 1}}, {Name: "n2", Prober: broken{}}}
	r, err := Run(context.Background(), nodes, Options{})
	if err != nil || r.Status != Unknown || r.ExitCode() != ExitUnknown || len(r.Unknown) != 1 || !strings.Contains(r.Unknown[0], "n2: broken") {
		t.Fatalf("%v, %+v", err, r)
	}
	if _, err := Run(context.Background(), []Node{nodes[0], nodes[2]}, Options{}); err == nil || !strings.Contains(err.Error(), "n2: broken") {
		t.Errorf("one node alone: %v", err)
	}
	if _, err := Run(context.Background(), nil, Options{}); err == nil || !strings.Contains(err.Error(), "two nodes") {
		t.Errorf("no node: %v", err)
	}
}

type broken struct{}

func (broken) Do(context.Context, *Request) (*Answer, error) { return nil, errors.New("broken") }

func TestNodeWithFewerRailsIsNamed(t *testing.T) {
	f, small := newFabric(3, 3, 1), newFabric(3, 2, 1)
	small.arrived, small.mu = f.arrived, f.mu
	r, err := Run(context.Background(), []Node{{Name: "n0", Prober: &simulated{f, 0}}, {Name: "n1", Prober: &simulated{f, 1}}, {Name: "n2", Prober: &simulated{small, 2}}}, Options{})
	if err != nil || !slices.Equal(told(r), []string{"down: n2/2"}) {
		t.Fatalf("%v, %q", err, told(r))
	}
}

// TestReportsHaveNoControlCharactersOfNames uses hostile names for a node and for an interface.
func TestReportsHaveNoControlCharactersOfNames(t *testing.T) {
	const name = "\x1b[2J<script>\u202e"
	f := newFabric(2, 2, 1)
	f.defects[End{"n1", 0}] = defect{problem: name}
	r, err := Run(context.Background(), []Node{{Name: "n0", Prober: &simulated{f, 0}}, {Name: "n1", Prober: &simulated{f, 1}}}, Options{Version: name})
	if err != nil {
		t.Fatal(err)
	}
	r.Nodes[0], r.Unknown = name, []string{name}
	for i := range r.Ends {
		if r.Ends[i].Node == "n0" {
			r.Ends[i].Node, r.Ends[i].Interface.Name = name, name
		}
	}
	var text, document bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&document)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text.String(), "\x1b\u202e") {
		t.Errorf("%q", &text)
	}
	var back Result
	if err := json.Unmarshal(document.Bytes(), &back); err != nil || back.Schema != ResultSchema || !slices.Equal(told(&back), told(r)) {
		t.Errorf("%v\n%s", err, &document)
	}
}
