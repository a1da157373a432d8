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

// Expectation is whether a packet from one rail should arrive at another.
type Expectation string

// The expectations.
const (
	Must    Expectation = "must"     // a path of the rail itself
	MustNot Expectation = "must not" // rails are isolated
	May     Expectation = "may"      // it is not tested
)

// The values of fabric, which are those of the node file. The empty one expects nothing of
// paths between different rails.
const (
	Isolated = "isolated"
	Routed   = "routed"
	Flat     = "flat"
)

// Fabrics are the values of fabric except the empty one.
var Fabrics = []string{Isolated, Routed, Flat}

// Plan is the order in which pairs of nodes measure.
type Plan struct {
	Nodes  int      // each of them needs one pod, which has all its rails
	Rails  int      // of each node
	Fabric string   // one of Fabrics, or ""
	Rounds [][]Pair // no node is in two pairs of a round
}

// Way is a direction between two ends, by the indexes of their nodes.
type Way struct {
	From, FromRail int
	To, ToRail     int
	Expect         Expectation
}

// Schedule returns a tournament of the nodes by the circle method: node 0 stays, and the
// others move on by one place each round. n nodes need n−1 rounds, or n if n is odd: then one
// node rests in each round. Each pair of nodes is in exactly one round.
func Schedule(nodes, rails int, fabric string) *Plan {
	p := &Plan{Nodes: nodes, Rails: rails, Fabric: fabric}
	places := nodes + nodes%2
	for round := range max(places-1, 0) {
		var pairs []Pair
		for k := range places / 2 {
			a, b := seated(k, round, places), seated(places-1-k, round, places)
			if a >= nodes || b >= nodes {
				continue // the other one rests
			}
			pairs = append(pairs, Pair{min(a, b), max(a, b)})
		}
		if len(pairs) > 0 {
			p.Rounds = append(p.Rounds, pairs)
		}
	}
	return p
}

// seated returns which node is at a place of the circle in a round.
func seated(k, round, places int) int {
	if k == 0 {
		return 0
	}
	return (k-1+round)%(places-1) + 1
}

// Expected returns what the fabric makes of a packet between two rails.
func (p *Plan) Expected(from, to int) Expectation {
	switch {
	case from == to:
		return Must
	case p.Fabric == Isolated:
		return MustNot
	}
	return May
}

// Ways returns what a pair tests: each rail in both directions, and, if rails must not reach
// each other, each two different rails in one direction. The other direction of two different
// rails is another test, from the other rail.
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

// Pods returns how many pods a run needs in a cluster: they stay for all rounds.
func (p *Plan) Pods() int { return p.Nodes }

// Time returns about how long the rounds take: the pairs of a round, and the rails of a pair,
// are measured at the same time.
func (p *Plan) Time(o Options) time.Duration {
	return time.Duration(len(p.Rounds)) * o.filled().round()
}
