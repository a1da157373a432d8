package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is one part of the report, for a terminal or as markdown.
type table struct {
	title string
	head  []string
	rows  [][]string
	notes []string // below it: why a row has no figures
}

// missing adds a row without figures, and a note with the reason.
func (t *table) missing(title string, err error) {
	row := make([]string, len(t.head))
	row[0], row[1] = title, "–"
	t.rows = append(t.rows, row)
	t.notes = append(t.notes, fmt.Sprintf("not measured: %s: %v", title, err))
}

// text prints the table with aligned columns: words to the left, figures to the
// right.
func (t table) text(w io.Writer) {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintf(w, "\n%s\n", t.title)
	for _, row := range append([][]string{t.head}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 || i == len(row)-1 && t.head[i] == "" {
				line.WriteString("  " + cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
	for _, note := range t.notes {
		fmt.Fprintln(w, "  "+note)
	}
}

// markdown prints the table for a document.
func (t table) markdown(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n| %s |\n|---%s|\n", t.title, strings.Join(t.head, " | "), strings.Repeat("|--:", len(t.head)-1))
	for _, row := range t.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
	for _, note := range t.notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
}

// verdict is one goal of the project and its outcome.
type verdict struct {
	Goal     string  `json:"goal"`
	Limit    float64 `json:"limit"`
	Measured float64 `json:"measured"`
	Unit     string  `json:"unit"`
	Met      bool    `json:"met"`
	AtLeast  bool    `json:"atLeast,omitempty"` // the limit is a lower one
	Why      string  `json:"notMeasured,omitempty"`
}

// String returns the verdict as a sentence.
func (v verdict) String() string {
	switch {
	case v.Why != "":
		return "not measured"
	case v.Met:
		return "met"
	}
	return fmt.Sprintf("MISSED by %.2f %s (%.0f %%)", math.Abs(v.Measured-v.Limit), v.Unit, 100*math.Abs(v.Measured/v.Limit-1))
}

func judge(goal string, limit, measured float64, unit string, err error) verdict {
	v := verdict{Goal: goal, Limit: limit, Measured: measured, Unit: unit, Met: measured <= limit}
	if err != nil {
		v.Why, v.Met, v.Measured = err.Error(), false, 0
	}
	return v
}

// ratio returns the ratio of two medians, 0 if one is missing.
func ratio(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	return median(a) / median(b)
}

// report holds all results of a run.
type report struct {
	about    about
	list     []*contender
	files    []*binary
	m        *measurement
	verdicts []verdict
}

// about holds the conditions of a run.
type about struct {
	Label      string `json:"label"`
	Against    string `json:"against"`
	Rounds     int    `json:"rounds"`
	Kernel     string `json:"kernel"`
	CPUs       int    `json:"cpus"`
	LoadBefore string `json:"loadBefore"`
	LoadAfter  string `json:"loadAfter"`
	State      string `json:"state"`
}

func newReport(a about, list []*contender, files []*binary, m *measurement) *report {
	r := &report{about: a, list: list, files: files, m: m}
	for _, c := range list {
		r.judgeContender(c)
	}
	if find(list, "mv-crowd") != nil {
		r.judgeGrowth()
	}
	for _, b := range files {
		p := m.processes[b.path]
		if b.rssGoal > 0 {
			r.verdicts = append(r.verdicts, judge(b.title+", peak memory", float64(b.rssGoal)/mebi, float64(p.RSS)/mebi, "MiB", p.Err))
		}
		if b.sizeGoal > 0 {
			r.verdicts = append(r.verdicts, judge(b.title+", size of the binary", float64(b.sizeGoal)/mega, float64(p.Size)/mega, "MB", p.Err))
		}
	}
	if m.traffic != nil {
		r.verdicts = append(r.verdicts, m.traffic.verdict())
	}
	return r
}

func (r *report) judgeContender(c *contender) {
	res := r.m.results[c.id]
	against := func(other *contender, words string, limit float64) {
		if other == nil || limit == 0 {
			return
		}
		base := r.m.results[other.id]
		err := res.Err
		if err == nil {
			err = base.Err
		}
		kind, _, _ := strings.Cut(c.group, ":")
		r.verdicts = append(r.verdicts,
			judge(kind+" ADD, "+c.title+", over "+words, limit, ratio(res.Add, base.Add), "×", err),
			judge(kind+" DEL, "+c.title+", over "+words, limit, ratio(res.Del, base.Del), "×", err))
	}
	against(find(r.list, c.base), "upstream", c.goals.base)
	against(find(r.list, c.floor), "the bare move", c.goals.floor)
}

// judgeGrowth judges what the other attachments of a node cost an ADD, in CPU time. Most
// of it is the kernel's.
func (r *report) judgeGrowth() {
	var err error
	growth := func(crowded, alone string) float64 {
		a, b := r.m.results[crowded], r.m.results[alone]
		err = errors.Join(err, a.Err, b.Err)
		return median(a.AddCPU) - median(b.AddCPU)
	}
	cost, base := growth("mv-crowd", "mv"), growth("mv-crowd-up", "mv-up")
	r.verdicts = append(r.verdicts, judge(fmt.Sprintf("macvlan ADD, CPU that %d others cost, over upstream", crowd), 1, cost/base, "×", err))
}

// tables returns the tables of the report.
func (r *report) tables() []table {
	var all []table
	var groups []string
	for _, c := range r.list {
		if !slices.Contains(groups, c.group) {
			groups = append(groups, c.group)
			all = append(all, r.groupTable(c.group))
		}
	}
	if len(r.files) > 0 {
		all = append(all, r.fileTable())
	}
	if r.m.traffic != nil {
		all = append(all, r.m.traffic.table())
	}
	return append(all, goalTable("goals", r.verdicts))
}

func (r *report) groupTable(group string) table {
	t := table{title: group, head: []string{
		"medians in milliseconds, and their ratios",
		"ADD", "p90", "CPU", "×upstream", "×floor", "netlink", "waits", "DEL", "p90", "CPU", "×upstream", "×floor", "netlink", "waits",
	}}
	for _, c := range r.list {
		if c.group != group {
			continue
		}
		res := r.m.results[c.id]
		if res.Err != nil {
			t.missing(c.title, res.Err)
			continue
		}
		row := []string{c.title}
		for _, pick := range []func(*result) (wall, cpu []float64, asked *kernel){
			func(r *result) (wall, cpu []float64, asked *kernel) { return r.Add, r.AddCPU, r.AddKernel },
			func(r *result) (wall, cpu []float64, asked *kernel) { return r.Del, r.DelCPU, r.DelKernel },
		} {
			wall, cpu, asked := pick(res)
			row = append(row, fmt.Sprintf("%.1f", median(wall)), fmt.Sprintf("%.1f", quantile(wall, 0.9)), fmt.Sprintf("%.1f", median(cpu)))
			for _, id := range []string{c.base, c.floor} {
				cell := ""
				if other := r.m.results[id]; other != nil && other.Err == nil {
					theirs, _, _ := pick(other)
					cell = fmt.Sprintf("%.2f", ratio(wall, theirs))
				}
				row = append(row, cell)
			}
			row = append(row, asked.cells()...)
		}
		if res.NotCounted != nil {
			t.notes = append(t.notes, fmt.Sprintf("not counted: %s: %v", c.title, res.NotCounted))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// cells returns the last two cells of a verb's row.
func (k *kernel) cells() []string {
	if k == nil {
		return []string{"–", "–"}
	}
	return []string{strconv.Itoa(k.Requests), strconv.Itoa(k.Waits)}
}

func (r *report) fileTable() table {
	t := table{title: "binaries", head: []string{"", "start ms", "p90", "peak MiB", "size MB"}}
	for _, b := range r.files {
		p := r.m.processes[b.path]
		if p.Err != nil {
			t.missing(b.title, p.Err)
			continue
		}
		row := []string{b.title, "", "", "", fmt.Sprintf("%.1f", float64(p.Size)/mega)}
		if b.plugin {
			row[1], row[2] = fmt.Sprintf("%.1f", median(p.Start)), fmt.Sprintf("%.1f", quantile(p.Start, 0.9))
			row[3] = fmt.Sprintf("%.1f", float64(p.RSS)/mebi)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func goalTable(title string, verdicts []verdict) table {
	t := table{title: title, head: []string{"", "goal", "measured", ""}}
	for _, v := range verdicts {
		measured := ""
		if v.Why == "" {
			measured = fmt.Sprintf("%.2f %s", v.Measured, v.Unit)
		}
		sign := map[bool]string{false: "≤", true: "≥"}[v.AtLeast]
		t.rows = append(t.rows, []string{v.Goal, fmt.Sprintf("%s %.2f %s", sign, v.Limit, v.Unit), measured, v.String()})
	}
	return t
}

// heading returns the conditions of the run as text.
func (a about) heading() string {
	busy := ""
	if load, err := strconv.ParseFloat(a.LoadBefore, 64); err == nil && load > float64(a.CPUs)/2 {
		busy = "\nthe machine was busy: measure again when it is quiet before believing a figure"
	}
	return fmt.Sprintf("rail-cni %s against %s, %d rounds in turn\n"+
		"Linux %s, %d CPUs, load average %s before and %s after\n%s",
		a.Label, a.Against, a.Rounds, a.Kernel, a.CPUs, a.LoadBefore, a.LoadAfter, a.State) + busy
}

func (a about) markdown(w io.Writer) {
	fmt.Fprintf(w, "## Bench\n\n%s  \n", strings.ReplaceAll(a.heading(), "\n", "  \n"))
}

func (r *report) text(w io.Writer) {
	fmt.Fprintln(w, r.about.heading())
	for _, t := range r.tables() {
		t.text(w)
	}
}

func (r *report) markdown(w io.Writer) {
	r.about.markdown(w)
	for _, t := range r.tables() {
		t.markdown(w)
	}
}

// json writes everything, including every sample, so that others can compute
// again.
func (r *report) json(w io.Writer) error {
	type row struct {
		Group  string    `json:"group"`
		Title  string    `json:"title"`
		Add    []float64 `json:"addMs,omitempty"`
		Del    []float64 `json:"delMs,omitempty"`
		AddCPU []float64 `json:"addCPUMs,omitempty"`
		DelCPU []float64 `json:"delCPUMs,omitempty"`
		AddNet *kernel   `json:"addNetlink,omitempty"`
		DelNet *kernel   `json:"delNetlink,omitempty"`
		Error  string    `json:"error,omitempty"`
	}
	type file struct {
		Title string    `json:"title"`
		Start []float64 `json:"startMs,omitempty"`
		RSS   int64     `json:"peakBytes,omitempty"`
		Size  int64     `json:"sizeBytes,omitempty"`
		Error string    `json:"error,omitempty"`
	}
	var all struct {
		About    about     `json:"about"`
		Rows     []row     `json:"rows"`
		Files    []file    `json:"binaries"`
		Traffic  *traffic  `json:"traffic,omitempty"`
		Verdicts []verdict `json:"goals"`
	}
	all.About, all.Verdicts, all.Traffic = r.about, r.verdicts, r.m.traffic
	for _, c := range r.list {
		m := r.m.results[c.id]
		all.Rows = append(all.Rows, row{Group: c.group, Title: c.title, Add: m.Add, Del: m.Del, AddCPU: m.AddCPU, DelCPU: m.DelCPU, AddNet: m.AddKernel, DelNet: m.DelKernel, Error: words(m.Err)})
	}
	for _, b := range r.files {
		p := r.m.processes[b.path]
		all.Files = append(all.Files, file{Title: b.title, Start: p.Start, RSS: p.RSS, Size: p.Size, Error: words(p.Err)})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// unmeasured returns the names of the contenders without figures.
func (r *report) unmeasured() []string {
	var names []string
	for _, c := range r.list {
		if r.m.results[c.id].Err != nil {
			names = append(names, c.title)
		}
	}
	for _, b := range r.files {
		if r.m.processes[b.path].Err != nil {
			names = append(names, b.title)
		}
	}
	return names
}
