package verify

import (
	"testing"
	"time"
)

func TestTournamentHasEachPairOnceAndNoNodeTwiceInARound(t *testing.T) {
	for nodes := range 66 {
		p := Schedule(nodes, 1, "")
		wantRounds := nodes - 1 + nodes%2
		if nodes < 2 {
			wantRounds = 0
		}
		if len(p.Rounds) != wantRounds {
			t.Errorf("%d nodes have %d rounds, not %d", nodes, len(p.Rounds), wantRounds)
		}
		met := map[Pair]int{}
		for k, round := range p.Rounds {
			busy := map[int]bool{}
			for _, pair := range round {
				if pair.A >= pair.B || pair.A < 0 || pair.B >= nodes {
					t.Fatalf("%d nodes: round %d has pair %v", nodes, k, pair)
				}
				if busy[pair.A] || busy[pair.B] {
					t.Errorf("%d nodes: in round %d a node of %v is in two pairs", nodes, k, pair)
				}
				busy[pair.A], busy[pair.B] = true, true
				met[pair]++
			}
			if len(round) != nodes/2 {
				t.Errorf("%d nodes: round %d has %d pairs, not %d", nodes, k, len(round), nodes/2)
			}
		}
		if len(met) != nodes*(nodes-1)/2 {
			t.Errorf("%d nodes: %d pairs meet", nodes, len(met))
		}
		for pair, n := range met {
			if n != 1 {
				t.Errorf("%d nodes: %v meets %d times", nodes, pair, n)
			}
		}
	}
}

// TestScheduleOf64NodesWith8Rails checks the numbers in the guide.
func TestScheduleOf64NodesWith8Rails(t *testing.T) {
	p := Schedule(64, 8, Isolated)
	paths, crossings := map[Way]bool{}, map[Way]bool{}
	for _, round := range p.Rounds {
		for _, pair := range round {
			for _, w := range p.Ways(pair) {
				of := paths
				if w.Expect == MustNot {
					of = crossings
				}
				if of[w] {
					t.Fatalf("%+v is tested twice", w)
				}
				of[w] = true
			}
		}
	}
	const pairs = 64 * 63 / 2
	if len(p.Rounds) != 63 || p.Pods() != 64 || len(paths) != 2*8*pairs || len(crossings) != 8*7*pairs {
		t.Errorf("%d rounds, %d pods, %d paths, %d crossings", len(p.Rounds), p.Pods(), len(paths), len(crossings))
	}
	// Each path must be there in both directions. Each pair of different rails of two nodes must be
	// there once.
	for w := range paths {
		if w.FromRail != w.ToRail || !paths[Way{w.To, w.ToRail, w.From, w.FromRail, Must}] {
			t.Fatalf("%+v has no other direction", w)
		}
	}
	if d := p.Time(Options{}); d > 2*time.Minute {
		t.Errorf("it takes %v", d)
	}
}

func TestFabricDecidesWhichRailsMayReachEachOther(t *testing.T) {
	for fabric, want := range map[string]Expectation{"": May, Routed: May, Flat: May, Isolated: MustNot} {
		p := Schedule(2, 3, fabric)
		if have := p.Expected(0, 1); have != want || p.Expected(1, 1) != Must {
			t.Errorf("fabric %q: %s", fabric, have)
		}
		ways := 2 * 3
		if want == MustNot {
			ways += 3 * 2
		}
		if have := len(p.Ways(p.Rounds[0][0])); have != ways {
			t.Errorf("fabric %q: %d ways, not %d", fabric, have, ways)
		}
	}
}
