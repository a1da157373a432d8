package verify

import (
	"fmt"
	"time"
)

// End is a rail of a node. Rails are numbered from 0.
type End struct {
	Node string `json:"node"`
	Rail int    `json:"rail"`
}

func (e End) String() string { return fmt.Sprintf("%s rail %d", e.Node, e.Rail) }

// Pair is two nodes, by their indexes. A is less than B.
type Pair struct{ A, B int }

// Expectation is what should happen to a packet from one rail to another rail.
type Expectation string

// These are the expectations.
const (
	Must    Expectation = "must"     // the packet must arrive: both ends are on the same rail
	MustNot Expectation = "must not" // the packet must not arrive: the rails are isolated
	May     Expectation = "may"      // the packet may arrive, so this is not tested
)

// These are the values of fabric. The node file has the same values. With the empty value, nothing
// is expected of paths between different rails.
const (
	Isolated = "isolated"
	Routed   = "routed"
	Flat     = "flat"
)

// Fabrics are the values of fabric, without the empty value.
var Fabrics = []string{Isolated, Routed, Flat}

// Plan is the order in which pairs of nodes measure.
type Plan struct {
	Nodes  int      // each node needs one pod, which has all rails of the node
	Rails  int      // the number of rails of each node
	Fabric string   // an element of Fabrics, or ""
	Rounds [][]Pair // no node is in two pairs of a round
}

// Way is a direction between two ends, by the indexes of their nodes.
type Way struct {
	From, FromRail int
	To, ToRail     int
	Expect         Expectation
}

// Schedule returns a tournament of the nodes by the circle method: node 0 stays at its place, and
// all other nodes move on by one place in each round. If n is even, n nodes need n−1 rounds. If n
// is odd, they need n rounds, and one node rests in each round. Each pair of nodes is in exactly
// one round.
func Schedule(nodes, rails int, fabric string) *Plan {
	p := &Plan{Nodes: nodes, Rails: rails, Fabric: fabric}
	places := nodes + nodes%2
	for round := range max(places-1, 0) {
		var pairs []Pair
		for k := range places / 2 {
			a, b := seated(k, round, places), seated(places-1-k, round, places)
			if a >= nodes || b >= nodes {
				continue // the other node rests
			}
			pairs = append(pairs, Pair{min(a, b), max(a, b)})
		}
		if len(pairs) > 0 {
			p.Rounds = append(p.Rounds, pairs)
		}
	}
	return p
}

// seated returns the node that is at place k of the circle in a round.
func seated(k, round, places int) int {
	if k == 0 {
		return 0
	}
	return (k-1+round)%(places-1) + 1
}

// Expected returns what should happen in this fabric to a packet from the rail from to the rail to.
func (p *Plan) Expected(from, to int) Expectation {
	switch {
	case from == to:
		return Must
	case p.Fabric == Isolated:
		return MustNot
	}
	return May
}

// Ways returns the ways that a pair of nodes tests. Each rail is tested in both directions. If
// rails must not reach each other, each ordered pair of different rails is also tested, but only
// from one node to the other.
func (p *Plan) Ways(pair Pair) (ways []Way) {
	for i := range p.Rails {
		ways = append(ways, Way{pair.A, i, pair.B, i, Must}, Way{pair.B, i, pair.A, i, Must})
	}
	for i := range p.Rails {
		for j := range p.Rails {
			if e := p.Expected(i, j); e == MustNot {
				ways = append(ways, Way{pair.A, i, pair.B, j, e})
			}
		}
	}
	return ways
}

// Pods returns the number of pods that a run needs in a cluster. A pod is used in all rounds.
func (p *Plan) Pods() int { return p.Nodes }

// Time returns an estimate of how long the rounds take. The pairs of a round, and the rails of a
// pair, are measured at the same time.
func (p *Plan) Time(o Options) time.Duration {
	return time.Duration(len(p.Rounds)) * o.filled().round()
}
