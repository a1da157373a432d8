package verify

import (
	"maps"
	"slices"
)

// graph has the pairs of ends of all paths, and the bad pairs among them.
type graph struct {
	all map[End]int     // the number of pairs that each end is in
	bad map[[2]End]bool // each pair once
	is  map[[2]End]bool // pairs that were added
}

func newGraph() *graph {
	return &graph{all: map[End]int{}, bad: map[[2]End]bool{}, is: map[[2]End]bool{}}
}

// pair adds a path between two ends. The path in the other direction is the same pair. A pair is
// bad if at least one of its two paths is bad.
func (g *graph) pair(a, b End, bad bool) {
	key := [2]End{a, b}
	if g.is[[2]End{b, a}] {
		key = [2]End{b, a}
	}
	if !g.is[key] {
		g.is[key] = true
		g.all[a]++
		g.all[b]++
	}
	if bad {
		g.bad[key] = true
	}
}

// explain removes the bad pairs of an end, because a finding now explains them.
func (g *graph) explain(e End) {
	maps.DeleteFunc(g.bad, func(key [2]End, _ bool) bool { return key[0] == e || key[1] == e })
}

// blame returns groups of ends that explain the bad pairs. It repeatedly takes the end with the
// most bad pairs, because a bad end has bad paths to all other ends. Ends that explain a pair
// equally well form one group. If all pairs of a rail are bad, all ends of the rail form one group.
func (g *graph) blame(compare func(a, b End) int) (groups [][]End) {
	for len(g.bad) > 0 {
		count := map[End]int{}
		for key := range g.bad {
			count[key[0]]++
			count[key[1]]++
		}
		ends := slices.SortedFunc(maps.Keys(count), func(a, b End) int {
			if count[a] != count[b] {
				return count[b] - count[a]
			}
			return compare(a, b)
		})
		group := ends[:1]
		first := ends[0]
		var rail []End // all ends of the same rail with bad pairs
		whole := true
		for _, e := range ends {
			if e.Rail == first.Rail {
				rail = append(rail, e)
				whole = whole && count[e] == g.all[e]
			}
		}
		switch {
		case whole && len(rail) > 1:
			group = rail
		case count[first] == 1:
			group = g.other(first)
		}
		for _, e := range group {
			g.explain(e)
		}
		groups = append(groups, slices.SortedFunc(slices.Values(group), compare))
	}
	return groups
}

// other returns the end e and the end with which e has a bad pair.
func (g *graph) other(e End) []End {
	for key := range g.bad {
		if key[0] == e || key[1] == e {
			return []End{key[0], key[1]}
		}
	}
	return []End{e}
}
