package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// clusterReport is the report of a run with -cluster.
type clusterReport struct {
	about      about
	runs       []*clusterRun
	wall, fill map[string][]point
}

// tables returns one table for each verb and etcd, and one for the goals.
func (r *clusterReport) tables() []table {
	var all []table
	for _, run := range r.runs {
		all = append(all, run.table("ADD", run.add), run.table("DEL", run.del), run.goals())
	}
	return all
}

func (r *clusterRun) table(verb string, results map[string]map[workload]*clusterResult) table {
	t := table{title: fmt.Sprintf("%s of macvlan pods by cnitool; %s", verb, r.versions), head: []string{
		"medians", "p50 ms", "p90 ms", "wall s", "×whereabouts", "×host-local", "requests a call", "CPU ms a call: plugins", "servers",
	}}
	for _, w := range append(slices.Clone(workloads), firsts) {
		for _, name := range clusterPlugins {
			res := results[name][w]
			if res == nil || len(res.each) == 0 {
				continue
			}
			row := []string{
				w.String() + ": " + name,
				fmt.Sprintf("%.1f", median(res.each)), fmt.Sprintf("%.1f", quantile(res.each, 0.9)), fmt.Sprintf("%.2f", median(res.wall)/1000),
			}
			for _, base := range []string{whereabouts, hostLocal} {
				cell := ""
				if other := results[base][w]; name != base && other != nil && len(other.wall) > 0 {
					cell = fmt.Sprintf("%.2f", w.ratio(res, other))
				}
				row = append(row, cell)
			}
			t.rows = append(t.rows, append(row, fmt.Sprintf("%.2f", median(res.requests)),
				fmt.Sprintf("%.1f", median(res.plugins)), fmt.Sprintf("%.1f", median(res.servers))))
		}
	}
	return t
}

// ratio compares single calls if pods start one by one, and the wall time of
// all pods if they start together.
func (w workload) ratio(res, other *clusterResult) float64 {
	if w.together == 1 {
		return ratio(res.each, other.each)
	}
	return ratio(res.wall, other.wall)
}

// verdicts returns the project's goals for the addresses of a cluster, and
// whether they are met.
func (r *clusterRun) verdicts() []verdict {
	over := func(goal string, limit float64, w workload, name, base string) verdict {
		return judge(goal, limit, w.ratio(r.add[name][w], r.add[base][w]), "×", nil)
	}
	less := median(r.add[oursBlocks][sequential].each) - median(r.add[hostLocal][sequential].each)
	return []verdict{
		over("ADD, one after another, over whereabouts", 0.3, sequential, ours, whereabouts),
		over("ADD, 50 at once, over whereabouts", 0.17, fifty, ours, whereabouts),
		over("ADD, 50 at once, over host-local", 1.3, fifty, ours, hostLocal),
		over("ADD, 50 at once on 10 nodes, over whereabouts", 0.25, spread, ours, whereabouts),
		over("ADD, one after another, blocks over the local store", 1.2, sequential, oursBlocks, oursLocal),
		judge("ADD, one after another, blocks less host-local", 5, less, "ms", nil),
		over("ADD, 50 at once, blocks over host-local", 1.1, fifty, oursBlocks, hostLocal),
		judge("requests for an ADD alone", 3, median(r.add[ours][sequential].requests), "", nil),
		judge("requests for a DEL alone", 3, median(r.del[ours][sequential].requests), "", nil),
		judge("requests for an ADD of 50 at once", 1, median(r.add[ours][fifty].requests), "", nil),
	}
}

func (r *clusterRun) goals() table { return goalTable("goals; "+r.versions, r.verdicts()) }

func (r *clusterReport) text(w io.Writer) {
	fmt.Fprintln(w, r.about.heading())
	for _, t := range r.tables() {
		t.text(w)
	}
}

// publish prints the report, and writes it and its pictures to dir.
func (r *clusterReport) publish(dir string) error {
	r.text(os.Stdout)
	var md bytes.Buffer
	r.about.markdown(&md)
	for _, t := range r.tables() {
		t.markdown(&md)
	}
	fmt.Fprint(&md, "\n![wall time over parallelism](cluster-parallel.svg)\n\n![ADD over pool fill](cluster-fill.svg)\n")
	type row struct {
		Versions string    `json:"versions"`
		Verb     string    `json:"verb"`
		Workload string    `json:"workload"`
		Plugin   string    `json:"plugin"`
		Each     []float64 `json:"eachMs"`
		Wall     []float64 `json:"wallMs"`
		Requests []float64 `json:"requestsPerCall"`
		Plugins  []float64 `json:"pluginsCPUMsPerCall"`
		Servers  []float64 `json:"serversCPUMsPerCall"`
	}
	all := struct {
		About    about              `json:"about"`
		Rows     []row              `json:"rows"`
		Parallel map[string][]point `json:"wallSecondsOverParallelism"`
		Fill     map[string][]point `json:"addMsOverFill"`
	}{About: r.about, Parallel: r.wall, Fill: r.fill}
	for _, run := range r.runs {
		for verb, results := range map[string]map[string]map[workload]*clusterResult{"ADD": run.add, "DEL": run.del} {
			for name, ws := range results {
				for w, c := range ws {
					all.Rows = append(all.Rows, row{run.versions, verb, w.String(), name, c.each, c.wall, c.requests, c.plugins, c.servers})
				}
			}
		}
	}
	js, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	pictures := map[string]chart{
		"cluster-parallel.svg": {
			title: "Pods that start at once on one node: until the last one has its address",
			x:     "pods", y: "seconds", logX: true, logY: true, lines: r.wall,
		},
		"cluster-fill.svg": {
			title: "ADD of one pod, with so many addresses handed out",
			x:     "addresses", y: "milliseconds", lines: r.fill,
		},
	}
	errs := []error{
		os.WriteFile(filepath.Join(dir, "cluster.md"), md.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "cluster.json"), js, 0o644),
	}
	for name, c := range pictures {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), c.svg(), 0o644))
	}
	fmt.Printf("\nwritten to %s, with pictures beside it\n", filepath.Join(dir, "cluster.{md,json}"))
	return errors.Join(errs...)
}
