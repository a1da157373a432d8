package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// ResultSchema is the schema of results in JSON. New versions may add fields, but they never change
// a field.
const ResultSchema = "rail-cni.io/doctor/v1"

// Document is the output of "railctl doctor -o json".
type Document struct {
	Schema  string              `json:"schema"`
	Taken   time.Time           `json:"taken"` // when the facts were read
	Node    string              `json:"node,omitempty"`
	Version string              `json:"version"` // of the program that read the facts
	Status  rule.Status         `json:"status"`  // of the whole: [rule.Worst]
	Counts  map[rule.Status]int `json:"counts"`  // of results, by status
	Notes   []string            `json:"notes,omitempty"`
	Results []rule.Result       `json:"results"` // in the order of rules
}

// NewDocument returns a document with the results, and with data from the facts that were judged.
func NewDocument(f *fact.Facts, results []rule.Result) *Document {
	d := &Document{Schema: ResultSchema, Taken: f.Taken, Node: rule.Clean(f.Node), Version: rule.Clean(f.Version), Status: rule.Worst(results), Counts: count(results), Notes: Notes(f), Results: results}
	if d.Results == nil {
		d.Results = []rule.Result{}
	}
	return d
}

// WriteJSON writes the document.
func (d *Document) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// These are the exit codes. They are the same as for the custom plugins of node-problem-detector.
const (
	ExitOK      = 0
	ExitProblem = 1
	ExitUnknown = 2
)

// ExitCode returns the exit code of a program that has these results. It is [ExitProblem] if a rule failed. Warnings do
// not change the exit code, because the node works. Missing facts do not change it either, because a run by an ordinary
// user always has some. If no rule could be judged at all, the exit code is [ExitUnknown]. If strict is true, the exit
// code is also ExitProblem if a rule warned, and ExitUnknown if a fact is missing and no rule failed or warned.
func ExitCode(results []rule.Result, strict bool) int {
	n := count(results)
	judged := n[rule.OK] + n[rule.Status(rule.Warn)] + n[rule.Status(rule.Fail)]
	switch {
	case n[rule.Status(rule.Fail)] > 0, strict && n[rule.Status(rule.Warn)] > 0:
		return ExitProblem
	case n[rule.Unknown] > 0 && (strict || judged == 0):
		return ExitUnknown
	}
	return ExitOK
}

func count(results []rule.Result) map[rule.Status]int {
	n := map[rule.Status]int{}
	for i := range results {
		n[results[i].Status]++
	}
	return n
}

// TextOptions are the options of [WriteText].
type TextOptions struct {
	Verbose bool // list each rule that is ok or skipped, and all findings
	Color   bool // show statuses in color, with ANSI sequences
	// Notes are the first lines.
	Notes []string
}

// The layout of the text report.
const (
	textWidth  = 100 // columns
	textIndent = 2   // columns of a rule's texts
	bullet     = "* "
)

// WriteText writes a report for people. Failed rules come first, then rules that warn, then the
// rules that could not be judged. The last line is a summary. Results of the same rule on several
// nodes are one entry.
func WriteText(w io.Writer, results []rule.Result, o TextOptions) error {
	t := &text{TextOptions: o, nodes: nodesOf(results)}
	for _, note := range o.Notes {
		t.WriteString(note + "\n\n")
	}
	for _, status := range []rule.Status{rule.Status(rule.Fail), rule.Status(rule.Warn)} {
		groups := ByRule(results, status)
		if len(groups) > 0 {
			t.heading(status)
		}
		for _, g := range groups {
			t.problem(g)
		}
	}
	t.unknown(results)
	if o.Verbose {
		t.lines(results, rule.Skipped, func(g []*rule.Result) string { return t.expects(g) })
		t.lines(results, rule.OK, func(g []*rule.Result) string { return t.expects(g) })
	}
	t.summary(results)
	_, err := io.WriteString(w, t.String())
	return err
}

// text is the report that WriteText builds.
type text struct {
	TextOptions
	strings.Builder
	nodes []string // the nodes that the results are about
}

// nodesOf returns the names of the nodes that the results are about, in the order of the results. A
// result of a cluster rule names no node.
func nodesOf(results []rule.Result) []string {
	var nodes []string
	seen := map[string]bool{}
	for i := range results {
		if n := results[i].Node; n != "" && !seen[n] {
			seen[n] = true
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// ByRule returns the results that have the status, in one group for each rule.
func ByRule(results []rule.Result, status rule.Status) (groups [][]*rule.Result) {
	index := map[string]int{}
	for i := range results {
		r := &results[i]
		if r.Status != status {
			continue
		}
		k, ok := index[r.ID]
		if !ok {
			k = len(groups)
			index[r.ID] = k
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], r)
	}
	return groups
}

// Alike is a finding together with all nodes that have it.
type Alike struct {
	rule.Finding
	Nodes []string // empty if the results name no node
}

// GroupFindings returns the findings of the results, in the order of the results. Findings that
// differ only in their node are merged into one.
func GroupFindings(results []*rule.Result) (all []Alike) {
	type key struct{ object, evidence, fix string }
	index := map[key]int{}
	for _, r := range results {
		for _, f := range r.Findings {
			k := key{f.Object, f.Evidence, f.Fix}
			i, ok := index[k]
			if !ok {
				i = len(all)
				index[k], all = i, append(all, Alike{Finding: f})
			}
			if alike := &all[i]; r.Node != "" && !slices.Contains(alike.Nodes, r.Node) {
				alike.Nodes = append(alike.Nodes, r.Node)
			}
		}
	}
	return all
}

var colors = map[rule.Status]string{rule.Status(rule.Fail): "31;1", rule.Status(rule.Warn): "33", rule.Unknown: "35", rule.OK: "32", rule.Skipped: "2"}

func (t *text) colored(status rule.Status, s string) string {
	if !t.Color {
		return s
	}
	return "\x1b[" + colors[status] + "m" + s + "\x1b[0m"
}

func (t *text) heading(status rule.Status) {
	t.WriteString(t.colored(status, strings.ToUpper(string(status))) + "\n\n")
}

// problem writes a rule with findings.
func (t *text) problem(group []*rule.Result) {
	first := group[0]
	t.WriteString(t.colored(first.Status, first.ID) + "\n")
	var findings []string
	var fixes []string
	for _, f := range GroupFindings(group) {
		line := f.Evidence
		if f.Object != "" {
			line = f.Object + ": " + line
		}
		findings = append(findings, t.nodePrefix(f.Nodes...)+line)
		if fix := t.nodePrefix(f.Nodes...) + f.Fix; f.Fix != "" && !slices.Contains(fixes, fix) && len(fixes) < rule.MaxShown {
			fixes = append(fixes, fix)
		}
	}
	shown := findings
	if !t.Verbose && len(shown) > rule.MaxShown {
		shown = shown[:rule.MaxShown]
	}
	for _, line := range shown {
		t.wrapped(bullet, line)
	}
	if more := len(findings) - len(shown); more > 0 {
		t.wrapped(bullet, fmt.Sprintf("… and %d more (-v shows all)", more))
	}
	t.wrapped("expected     ", first.Expects)
	t.wrapped("consequence  ", first.Consequence)
	t.wrapped("cure         ", first.Cure)
	for i, fix := range fixes {
		label := "fix          "
		if i > 0 {
			label = strings.Repeat(" ", len(label))
		}
		t.WriteString(strings.Repeat(" ", textIndent) + label + fix + "\n") // a command is never split into several lines
	}
	t.WriteString("\n")
}

// nodePrefix returns the prefix of a line that is about only some of the nodes. It returns "" if the
// report is about one node.
func (t *text) nodePrefix(nodes ...string) string {
	const few = 3
	switch more := len(nodes) - few; {
	case len(t.nodes) < 2 || len(nodes) == 0 || nodes[0] == "":
		return ""
	case more > 1 && !t.Verbose:
		return fmt.Sprintf("%s and %d more nodes: ", strings.Join(nodes[:few], ", "), more)
	}
	return strings.Join(nodes, ", ") + ": "
}

// wrapped writes a label and then the text s, in lines of at most textWidth columns.
func (t *text) wrapped(label, s string) {
	indent := strings.Repeat(" ", textIndent)
	column := textIndent + len(label)
	t.WriteString(indent + label)
	pos := column
	for i, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case pos+1+n > textWidth:
			t.WriteString("\n" + strings.Repeat(" ", column))
			pos = column
		default:
			t.WriteString(" ")
			pos++
		}
		t.WriteString(word)
		pos += n
	}
	t.WriteString("\n")
}

// lines writes one line for each rule that has the status. The function what returns the text after
// the rule's ID.
func (t *text) lines(results []rule.Result, status rule.Status, what func([]*rule.Result) string) {
	groups := ByRule(results, status)
	if len(groups) == 0 {
		return
	}
	t.heading(status)
	width := 0
	for _, g := range groups {
		width = max(width, len(g[0].ID))
	}
	for _, g := range groups {
		t.WriteString(t.colored(status, fmt.Sprintf("%-*s", width, g[0].ID)) + "  " + what(g) + "\n")
	}
	t.WriteString("\n")
}

// unknown writes each reason why facts are missing, and the rules that lack these facts. It groups
// by reason because one missing right, or one process that does not answer, is one thing to repair,
// even if many rules need the facts.
func (t *text) unknown(results []rule.Result) {
	type group struct {
		rules, facts []string
	}
	groups := map[string]*group{}
	var reasons []string
	for i := range results {
		r := &results[i]
		if r.Status != rule.Unknown {
			continue
		}
		for k, m := range r.Missing {
			reason := r.Reason(k)
			g := groups[reason]
			if g == nil {
				g = &group{}
				groups[reason], reasons = g, append(reasons, reason)
			}
			if !slices.Contains(g.rules, r.ID) {
				g.rules = append(g.rules, r.ID)
			}
			if m = t.nodePrefix(r.Node) + m; !slices.Contains(g.facts, m) {
				g.facts = append(g.facts, m)
			}
		}
	}
	if len(reasons) == 0 {
		return
	}
	t.heading(rule.Unknown)
	for _, reason := range reasons {
		g := groups[reason]
		t.wrapped(bullet, reason)
		missing := g.facts[0]
		if more := len(g.facts) - 1; more > 0 {
			missing += fmt.Sprintf(", and %d more", more)
		}
		if missing != reason {
			t.wrapped("not known    ", missing)
		}
		t.wrapped("rules        ", strings.Join(g.rules, ", "))
	}
	t.WriteString("\n")
}

func (t *text) expects(group []*rule.Result) string {
	if len(t.nodes) < 2 || len(group) == len(t.nodes) {
		return group[0].Expects
	}
	return fmt.Sprintf("%s (%d of %d nodes)", group[0].Expects, len(group), len(t.nodes))
}

// summary writes the last line.
func (t *text) summary(results []rule.Result) {
	n := count(results)
	ids := map[string]bool{}
	for i := range results {
		ids[results[i].ID] = true
	}
	scope := ""
	switch {
	case len(t.nodes) > 1:
		scope = fmt.Sprintf(" on %d nodes", len(t.nodes))
	case len(t.nodes) == 1 && t.nodes[0] != "":
		scope = " on " + t.nodes[0]
	}
	var parts []string
	for _, s := range rule.Statuses {
		if n[s] > 0 {
			parts = append(parts, t.colored(s, fmt.Sprintf("%d %s", n[s], s)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing to check"}
	}
	fmt.Fprintf(t, "%s%s: %s\n", plural(len(ids), "rule"), scope, strings.Join(parts, ", "))
}

// plural returns the number n and the noun, with an "s" after the noun if n is not 1.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
