package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// scaleReport has the runs of a tree, perhaps of several calls of the program.
type scaleReport struct {
	About about          `json:"about"`
	Runs  []*scaleResult `json:"runs"`
}

const (
	// keptGoal is the least part of a line's best addresses a second that it has with
	// moreLoad times as many nodes.
	keptGoal = 0.9
	moreLoad = 4
	// A line that has both is judged between these two: they are the largest that every line
	// is measured with, so lines can be compared.
	fewNodes, manyNodes = 50, maxWithEntries
	// modelRuns are the fewest runs that a model may predict from: its two costs fit two
	// runs exactly, which confirms nothing.
	modelRuns = 3
)

// benchScale measures, inside the node, and reports.
func benchScale(o options) error {
	ctx := context.Background()
	cases, err := scaleCases(o)
	if err != nil {
		return err
	}
	p, err := findPlaces(o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.disk)
	r := &scaleReport{}
	if r.About, err = machine(); err != nil {
		return err
	}
	l, err := newScaleLab(ctx, p)
	if err != nil {
		return err
	}
	defer l.plane.Close()
	etcd, apiserver, err := l.plane.Versions(ctx)
	if err != nil {
		return err
	}
	r.About.Label, r.About.Rounds, r.About.Against = o.label, 1, fmt.Sprintf("etcd %s and kube-apiserver %s, with the chart's FlowSchema", etcd, apiserver)
	r.About.State = "state of the nodes on tmpfs; etcd on disk, with fsync"
	r.keep(filepath.Join(o.out, "scale.json"))
	for _, c := range cases {
		results, err := l.run(ctx, c, o.limit)
		if err != nil {
			return err
		}
		for _, result := range results {
			fmt.Fprintf(os.Stderr, "  %d nodes, %s: %d ready, %.2f s\n", result.Nodes, result.line(), len(result.Ready), result.last())
			r.add(result)
		}
		if err := r.write(o.out); err != nil {
			return err
		}
	}
	if r.About.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	return r.publish(o.out)
}

// keep takes over the runs of an earlier call for the same tree: all numbers of nodes
// together take longer than a machine may stay quiet.
func (r *scaleReport) keep(path string) {
	var before scaleReport
	data, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(data, &before) == nil && before.About.Label == r.About.Label {
		r.Runs = before.Runs
	}
}

// add adds a run, in place of an earlier one of its case.
func (r *scaleReport) add(run *scaleResult) {
	r.Runs = slices.DeleteFunc(r.Runs, func(old *scaleResult) bool { return old.scaleCase == run.scaleCase })
	r.Runs = append(r.Runs, run)
}

// lines returns the names of the lines, sorted.
func (r *scaleReport) lines() (names []string) {
	for _, run := range r.Runs {
		if !slices.Contains(names, run.line()) {
			names = append(names, run.line())
		}
	}
	slices.Sort(names)
	return names
}

// runsOf returns the runs of a line.
func (r *scaleReport) runsOf(line string) (runs []*scaleResult) {
	for _, run := range r.Runs {
		if run.line() == line {
			runs = append(runs, run)
		}
	}
	return runs
}

// write writes the runs to dir, for keep, and the goals.
func (r *scaleReport) write(dir string) error {
	js, err := json.MarshalIndent(struct {
		*scaleReport
		Verdicts []verdict `json:"goals"`
	}{r, r.verdicts()}, "", " ")
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "scale.json"), js, 0o644))
}

func (r *scaleReport) table() table {
	t := table{title: fmt.Sprintf("One pod with %d rails on each node, all at once", scaleRails), head: []string{
		"", "ready", "p50 s", "p90 s", "last s", "addresses/s", "sandboxes failed", "patches in flight", "patches an address",
		"of them refused", "refused by code", "creates an address", "gets an address", "server's tries an address", "429", "etcd kB an address", "CPU ms an address: API server", "etcd", "nodes",
		"lease renewal p50 ms", "longest ms", "renewals failed",
	}}
	for _, run := range r.Runs {
		n := float64(max(len(run.Given), 1))
		row := []string{fmt.Sprintf("%d nodes, %s", run.Nodes, run.line()), strconv.Itoa(len(run.Ready))}
		for _, v := range []float64{quantile(run.Ready, 0.5), quantile(run.Ready, 0.9), run.last()} {
			row = append(row, fmt.Sprintf("%.2f", v))
		}
		row = append(row, fmt.Sprintf("%.1f", run.goodput()), strconv.Itoa(run.Sandboxes), fmt.Sprintf("%.1f", run.InFlight),
			fmt.Sprintf("%.1f", float64(run.Patches)/n), fmt.Sprintf("%.1f", float64(run.refused())/n), codes(run.Refused),
			fmt.Sprintf("%.2f", float64(run.Creates)/n), fmt.Sprintf("%.2f", float64(run.Gets)/n), fmt.Sprintf("%.1f", run.Tries/n), strconv.Itoa(run.TooMany),
			fmt.Sprintf("%.1f", run.WAL/1000/n))
		for _, seconds := range run.CPU {
			row = append(row, fmt.Sprintf("%.1f", 1000*seconds/n))
		}
		for _, q := range []float64{0.5, 1} {
			row = append(row, fmt.Sprintf("%.0f", 1000*quantile(run.Renewals, q)))
		}
		row = append(row, strconv.Itoa(run.Unrenewed))
		t.rows = append(t.rows, row)
	}
	return t
}

// refused returns the number of refused patches.
func (r *scaleResult) refused() (sum int) {
	for _, n := range r.Refused {
		sum += n
	}
	return sum
}

// codes returns the numbers of refused patches by HTTP status code, e.g. "409: 3, 422: 40".
func codes(refused map[int]int) string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(refused)) {
		parts = append(parts, fmt.Sprintf("%d: %d", code, refused[code]))
	}
	return strings.Join(parts, ", ")
}

// goodput returns the addresses a second.
func (r *scaleResult) goodput() float64 {
	return float64(len(r.Given)) / max(r.last(), 0.001)
}

// verdicts returns the project's goals for many nodes.
func (r *scaleReport) verdicts() (all []verdict) {
	for _, name := range r.lines() {
		all = append(all, judgeKept(name, r.runsOf(name)))
	}
	for _, name := range r.lines() {
		if runs := r.runsOf(name); runs[0].Block > 0 && !runs[0].Again {
			all = append(all, judgeReady(name, runs))
		}
	}
	return all
}

// judgeAtLeast is [judge] for what is better if it is larger.
func judgeAtLeast(goal string, limit, measured float64, unit string, err error) verdict {
	v := judge(goal, limit, measured, unit, err)
	v.AtLeast, v.Met = true, err == nil && measured >= limit
	return v
}

// judgeKept judges whether a line collapses under load: its addresses a second with many
// nodes, over the best with fewer.
func judgeKept(name string, runs []*scaleResult) verdict {
	few, many := judgedNodes(runs)
	if few == 0 {
		err := fmt.Errorf("no number of nodes is %d times another", moreLoad)
		return judgeAtLeast(name+": addresses/s under load, over the best at fewer nodes", keptGoal, 0, "×", err)
	}
	var loaded, best float64
	for _, run := range runs {
		switch {
		case run.Nodes == many:
			loaded = run.goodput()
		case run.Nodes < many:
			best = max(best, run.goodput())
		}
	}
	var err error
	if best == 0 {
		err = errors.New("fewer nodes got no address")
	}
	goal := fmt.Sprintf("%s, %d to %d nodes: addresses/s at %d over the best at fewer", name, few, many, many)
	return judgeAtLeast(goal, keptGoal, loaded/max(best, 0.001), "×", err)
}

// judgedNodes returns the two numbers of nodes that a line is judged between: fewNodes and
// manyNodes, or else its largest, and the largest that has no more than a part of its load.
// The first is 0 if there is none.
func judgedNodes(runs []*scaleResult) (few, many int) {
	var nodes []int
	for _, run := range runs {
		nodes = append(nodes, run.Nodes)
	}
	if slices.Contains(nodes, fewNodes) && slices.Contains(nodes, manyNodes) {
		return fewNodes, manyNodes
	}
	many = slices.Max(nodes)
	for _, n := range nodes {
		if moreLoad*n <= many {
			few = max(few, n)
		}
	}
	return few, many
}

// judgeReady judges whether all of manyNodes got ready without a failed sandbox. It is one
// number, because a percentage of no failures does not exist.
func judgeReady(name string, runs []*scaleResult) verdict {
	measured, err := 0, fmt.Errorf("there is no run of %d nodes", manyNodes)
	for _, run := range runs {
		if run.Nodes == manyNodes {
			measured, err = len(run.Ready)-run.Sandboxes, nil
		}
	}
	goal := fmt.Sprintf("%s: of %d nodes ready, less sandboxes failed", name, manyNodes)
	return judgeAtLeast(goal, manyNodes, float64(measured), "nodes", err)
}

// scaleModel is the time of a burst: each address costs a fixed time, and one for each
// entry that its pool has by then, because every try of the server copies the object.
// The priority level bounds the tries that fail for each one that succeeds, so their cost
// is part of both. With blocks the second is that of finding a block that no node holds.
type scaleModel struct{ fixed, entry float64 } // seconds

// last returns the seconds until the last address.
func (m scaleModel) last(c scaleCase) float64 {
	addresses := float64(c.Nodes * scaleRails)
	return addresses * (m.fixed + m.entry*addresses/float64(c.Pools)/2)
}

// fit returns the model with the least squares of the relative differences from the runs.
func fit(runs []*scaleResult) scaleModel {
	var ff, fe, ee, f1, e1 float64
	for _, run := range runs {
		fixed, entry := scaleModel{fixed: 1}.last(run.scaleCase)/run.last(), scaleModel{entry: 1}.last(run.scaleCase)/run.last()
		ff, fe, ee, f1, e1 = ff+fixed*fixed, fe+fixed*entry, ee+entry*entry, f1+fixed, e1+entry
	}
	det := ff*ee - fe*fe
	m := scaleModel{(f1*ee - e1*fe) / det, (ff*e1 - fe*f1) / det}
	switch { // neither cost is negative
	case m.entry < 0:
		return scaleModel{fixed: f1 / ff}
	case m.fixed < 0:
		return scaleModel{entry: e1 / ee}
	}
	return m
}

// model returns the table of the model of each line, and its points for the picture.
func (r *scaleReport) model() (table, map[string][]point) {
	t := table{title: "Model: time until the last address, on this machine", head: []string{"", "ms an address", "and µs for each address of the pool", "measured s (model differs by)", "1 000 nodes", "5 000 nodes"}}
	lines := map[string][]point{}
	for _, name := range r.lines() {
		var runs []*scaleResult
		for _, run := range r.runsOf(name) {
			if len(run.Ready) == run.Nodes {
				runs = append(runs, run)
				lines[name] = append(lines[name], point{float64(run.Nodes), run.last()})
			}
		}
		if len(runs) < 2 {
			continue
		}
		m := fit(runs)
		var measured []string
		for _, run := range runs {
			measured = append(measured, fmt.Sprintf("%d nodes: %.2f (%+.0f %%)", run.Nodes, run.last(), 100*(m.last(run.scaleCase)/run.last()-1)))
		}
		row := []string{name, fmt.Sprintf("%.2f", 1000*m.fixed), fmt.Sprintf("%.1f", 1e6*m.entry), strings.Join(measured, ", ")}
		for _, n := range []int{1000, 5000} {
			row = append(row, m.predict(runs, n))
		}
		t.rows = append(t.rows, row)
	}
	return t, lines
}

// predict returns the cell of a number of nodes, by the model of a line's runs.
func (m scaleModel) predict(runs []*scaleResult, nodes int) string {
	c := scaleCase{Nodes: nodes, Pools: runs[0].Pools}
	switch {
	case len(runs) < modelRuns:
		return "too few runs"
	case runs[0].Block == 0 && nodes*scaleRails/c.Pools > 10_000:
		return "does not fit into one object"
	}
	return fmt.Sprintf("%.1f s", m.last(c))
}

// usualNodes returns the number of nodes with the most runs, and of several the largest.
func (r *scaleReport) usualNodes() (nodes int) {
	runs := map[int]int{}
	for _, run := range r.Runs {
		runs[run.Nodes]++
	}
	for n, count := range runs {
		if count > runs[nodes] || count == runs[nodes] && n > nodes {
			nodes = n
		}
	}
	return nodes
}

// overTime returns, by line, the addresses of each tenth of the run with this number of
// nodes, for each second.
func (r *scaleReport) overTime(nodes int) (lines map[string][]point) {
	lines = map[string][]point{}
	for _, run := range r.Runs {
		if run.Nodes != nodes || len(run.Given) < 10 {
			continue
		}
		step := run.last() / 10
		for i := range 10 {
			count := 0
			for _, given := range run.Given {
				if given > float64(i)*step && given <= float64(i+1)*step {
					count++
				}
			}
			if count > 0 { // the axes are logarithmic
				lines[run.line()] = append(lines[run.line()], point{(float64(i) + 0.5) * step, float64(count) / step})
			}
		}
	}
	return lines
}

// publish prints the report, and writes it and its pictures to dir.
func (r *scaleReport) publish(dir string) error {
	slices.SortStableFunc(r.Runs, func(a, b *scaleResult) int {
		return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Block, b.Block), cmp.Compare(b.Pools, a.Pools), cmp.Compare(b.Shares, a.Shares))
	})
	model, last := r.model()
	goals := goalTable("goals", r.verdicts())
	nodes := r.usualNodes()
	fmt.Println(r.About.heading())
	r.table().text(os.Stdout)
	model.text(os.Stdout)
	goals.text(os.Stdout)
	var md bytes.Buffer
	r.About.markdown(&md)
	r.table().markdown(&md)
	fmt.Fprint(&md, "\n![until the last address over nodes](scale-last.svg)\n\n![addresses a second over time](scale-goodput.svg)\n")
	model.markdown(&md)
	goals.markdown(&md)
	pictures := map[string]chart{
		"scale-last.svg":    {title: "Pods with eight rails that start at once: until the last address", x: "nodes", y: "seconds", logX: true, logY: true, lines: last, order: r.lines()},
		"scale-goodput.svg": {title: fmt.Sprintf("%d nodes with eight rails each, started at once", nodes), x: "seconds", y: "addresses a second", logX: true, logY: true, lines: r.overTime(nodes), order: r.lines()},
	}
	errs := []error{
		os.WriteFile(filepath.Join(dir, "scale.md"), md.Bytes(), 0o644),
		r.write(dir),
	}
	for name, c := range pictures {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), c.svg(), 0o644))
	}
	fmt.Printf("\nwritten to %s, with pictures beside it\n", filepath.Join(dir, "scale.{md,json}"))
	return errors.Join(errs...)
}
