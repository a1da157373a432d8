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
	"strconv"
)

// podReport is the report of a run with -pods.
type podReport struct {
	about    about
	versions string
	results  map[string]map[string]*podResult // by scene and suite
	calls    []*callRow                       // of [lentScene], if it is measured
	scenes   []scene                          // that are measured
}

// has reports whether the scene is measured.
func (r *podReport) has(sc scene) bool {
	return slices.ContainsFunc(r.scenes, func(other scene) bool { return other.id == sc.id })
}

// podVerb is one of the two directions: start or deletion.
type podVerb struct {
	name, note string
	times      func(*podResult) *podTimes
}

var podVerbs = []podVerb{
	{"start", "from the first request until the last pod is Ready", func(r *podResult) *podTimes { return &r.Start }},
	{"delete", "from the request until the last pod is gone", func(r *podResult) *podTimes { return &r.Delete }},
}

func (r *podReport) times(sc scene, s suite, v podVerb) *podTimes {
	return v.times(r.results[sc.id][s.id])
}

// added returns what the rails add to the median of the floor.
func (r *podReport) added(sc scene, s suite, v podVerb) float64 {
	return median(r.times(sc, s, v).All) - median(r.times(sc, noRails, v).All)
}

// addedRatio returns what the rails of one of our suites add, divided by what
// upstream's add. It fails if the difference is not larger than the noise.
func (r *podReport) addedRatio(sc scene, s suite, v podVerb) (float64, error) {
	added, base := r.added(sc, s, v), r.added(sc, upstream, v)
	floor := r.times(sc, noRails, v).All
	noise := (slices.Max(floor) - slices.Min(floor)) / 2
	if base <= noise || added < -noise/2 {
		return 0, fmt.Errorf("upstream's rails add %.2f s, ours %.2f s, and the floor differs from itself by ±%.2f s", base, added, noise)
	}
	return added / base, nil
}

func (r *podReport) tables() []table {
	var all []table
	for _, sc := range r.scenes {
		for _, v := range podVerbs {
			all = append(all, r.table(sc, v))
		}
	}
	if r.calls != nil {
		all = append(all, callTable(lentScene, r.calls))
	}
	if verdicts := r.verdicts(); verdicts != nil {
		all = append(all, goalTable("goals", verdicts))
	}
	return all
}

func (r *podReport) table(sc scene, v podVerb) table {
	t := table{title: sc.title + ": " + v.name, head: []string{
		v.note, "median s", "min", "max", "×upstream", "rails add s", "×upstream", "a pod p50 s", "sandbox p50 ms", "p90", "failed", "CPU s", "×upstream",
	}}
	for _, s := range sc.suites {
		times := r.times(sc, s, v)
		row := []string{
			s.title, fmt.Sprintf("%.2f", median(times.All)), fmt.Sprintf("%.2f", slices.Min(times.All)), fmt.Sprintf("%.2f", slices.Max(times.All)), "", "", "",
			fmt.Sprintf("%.2f", median(times.Each)), fmt.Sprintf("%.0f", median(times.Sandbox)), fmt.Sprintf("%.0f", quantile(times.Sandbox, 0.9)),
			strconv.Itoa(times.Failed), fmt.Sprintf("%.2f", median(times.CPU)), "",
		}
		if s != upstream {
			row[4] = fmt.Sprintf("%.2f", ratio(times.All, r.times(sc, upstream, v).All))
			row[12] = fmt.Sprintf("%.2f", ratio(times.CPU, r.times(sc, upstream, v).CPU))
		}
		if s != noRails {
			row[5] = fmt.Sprintf("%.2f", r.added(sc, s, v))
		}
		if over, err := r.addedRatio(sc, s, v); err == nil && s != upstream && s != noRails {
			row[6] = fmt.Sprintf("%.2f", over)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// verdicts returns the project's goals for pods. Most of the whole time is the
// kubelets' and the runtimes', so the time that the rails add is judged as
// well.
func (r *podReport) verdicts() (all []verdict) {
	for _, sc := range r.scenes {
		for _, v := range podVerbs {
			if sc.limit == 0 {
				continue
			}
			over, err := r.addedRatio(sc, ourSuite, v)
			all = append(all,
				judge(sc.title+": "+v.name+", over upstream", sc.limit, ratio(r.times(sc, ourSuite, v).All, r.times(sc, upstream, v).All), "×", nil),
				judge("… what the rails add to it, over upstream", sc.limit, over, "×", err))
		}
	}
	return all
}

// disturbed returns the number of turns in which a kubelet removed sandboxes.
func (r *podReport) disturbed() (n int) {
	for _, suites := range r.results {
		for _, one := range suites {
			n += one.Disturbed
		}
	}
	return n
}

func (r *podReport) print(w io.Writer, heading func(io.Writer), each func(table, io.Writer)) {
	heading(w)
	fmt.Fprintf(w, "%s; %d turns, in which a kubelet removed sandboxes, were made again\n", r.versions, r.disturbed())
	for _, t := range r.tables() {
		each(t, w)
	}
}

// publish prints the report, and writes it to dir.
func (r *podReport) publish(dir string) error {
	r.print(os.Stdout, func(w io.Writer) { fmt.Fprintln(w, r.about.heading()) }, table.text)
	var md bytes.Buffer
	r.print(&md, r.about.markdown, table.markdown)
	js, err := json.MarshalIndent(struct {
		About    about                            `json:"about"`
		Versions string                           `json:"versions"`
		Results  map[string]map[string]*podResult `json:"results"`
		Calls    []*callRow                       `json:"calls"`
		Verdicts []verdict                        `json:"goals"`
	}{r.about, r.versions, r.results, r.calls, r.verdicts()}, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s\n", filepath.Join(dir, "pods.{md,json}"))
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "pods.md"), md.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "pods.json"), js, 0o644),
	)
}
