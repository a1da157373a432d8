package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// scaleCase is a number of nodes, and the configuration of their cluster.
type scaleCase struct {
	Nodes  int  `json:"nodes"`
	Pools  int  `json:"pools"`           // one for each rail, or one for all
	Block  int  `json:"block,omitempty"` // addresses of a block, 0 = entry by entry
	Again  bool `json:"again,omitempty"` // the nodes had pods, and have blocks
	Shares int  `json:"shares"`          // of the priority level, see [scaleLab.level]
	Seats  int  `json:"seats"`           // patches that the server works on at once, by these shares
}

// line returns the name of the case without the number of nodes.
func (c scaleCase) line() string {
	pools := "a pool per rail"
	if c.Pools == 1 {
		pools = "one pool"
	}
	switch {
	case c.Block == 0:
		return fmt.Sprintf("%s, entry by entry, %d seats", pools, c.Seats)
	case c.Again:
		return fmt.Sprintf("%s, blocks of %d, claimed before", pools, c.Block)
	}
	return fmt.Sprintf("%s, blocks of %d, first pods", pools, c.Block)
}

// scaleLine is a configuration that -lines can name.
type scaleLine struct {
	name, kind   string
	pools, block int
}

const (
	kindEntries = "entries"
	kindBlocks  = "blocks"
)

var scaleLines = []scaleLine{
	{"rails-entries", kindEntries, scaleRails, 0},
	{"one-entries", kindEntries, 1, 0},
	{"one-blocks", kindBlocks, 1, 16},
	{"rails-blocks", kindBlocks, scaleRails, 4},
}

const (
	// maxWithEntries is the largest number of nodes that is measured entry by entry: on
	// one pool not even these end within [scaleLimit].
	maxWithEntries = 200
	// chartShares is the chart's apiPriority.shares.
	chartShares = 1
)

// scaleCases returns the cases that the flags name, those with the fewest nodes first.
func scaleCases(o options) (cases []scaleCase, err error) {
	nodes, err := numbers("-nodes", o.nodes)
	if err != nil {
		return nil, err
	}
	shares, err := numbers("-shares", o.shares)
	if err != nil {
		return nil, err
	}
	lines, err := linesOf(o.lines)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		for _, line := range lines {
			c := scaleCase{Nodes: n, Pools: line.pools, Block: line.block, Shares: chartShares}
			switch {
			case line.kind == kindBlocks:
				cases = append(cases, c)
			case n <= maxWithEntries:
				for _, c.Shares = range shares {
					cases = append(cases, c)
				}
			}
		}
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("-nodes %s -lines %s: entry by entry no more than %d nodes are measured", o.nodes, o.lines, maxWithEntries)
	}
	return cases, nil
}

// linesOf returns the configurations with the names or kinds of a list.
func linesOf(list string) (all []scaleLine, err error) {
	names := strings.Split(list, ",")
	for _, line := range scaleLines {
		if slices.Contains(names, line.name) || slices.Contains(names, line.kind) {
			all = append(all, line)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(l scaleLine) bool { return name == l.name || name == l.kind }) {
			return nil, fmt.Errorf("-lines %s: there is no %q, only %s, %s, and of these %s", list, name, kindEntries, kindBlocks, lineNames())
		}
	}
	return all, nil
}

func lineNames() string {
	var names []string
	for _, line := range scaleLines {
		names = append(names, line.name)
	}
	return strings.Join(names, ", ")
}

// numbers returns the numbers of a flag's value.
func numbers(name, list string) (all []int, err error) {
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s %s: want numbers, with commas between them", name, list)
		}
		all = append(all, n)
	}
	return all, nil
}
