package verify

import (
	"maps"
	"slices"
)

// graph is the pairs of ends of paths, and which of them are bad.
type graph struct {
	all map[End]int     // pairs of an end
	bad map[[2]End]bool // each pair once
	is  map[[2]End]bool // pairs that were added
}

func newGraph() *graph {
	return &graph{all: map[End]int{}, bad: map[[2]End]bool{}, is: map[[2]End]bool{}}
}

// pair adds a path between two ends. The other direction is the same pair, which is bad if one
// of them is.
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

// explain removes the bad pairs of an end.
func (g *graph) explain(e End) {
	maps.DeleteFunc(g.bad, func(key [2]End, _ bool) bool { return key[0] == e || key[1] == e })
}

// blame returns the ends that explain the bad pairs: again and again the one with the most, as
// an end that is bad is bad to all others. Ends that explain a pair equally well are one
// group, as are all ends of a rail whose pairs are all bad.
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

// other returns an end and the one with which it has a bad pair.
func (g *graph) other(e End) []End {
	for key := range g.bad {
		if key[0] == e || key[1] == e {
			return []End{key[0], key[1]}
		}
	}
	return []End{e}
}
