package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/contain"
)

// Scope is the kind of thing that a rule judges.
type Scope string

// The scopes.
const (
	NodeScope    Scope = "node"
	PodScope     Scope = "pod"
	ClusterScope Scope = "cluster"
	ConfigScope  Scope = "config"
)

// Scopes are all scopes, in the order of reports.
var Scopes = []Scope{NodeScope, PodScope, ClusterScope, ConfigScope}

// Severity is the status of a rule with findings.
type Severity string

// The severities.
const (
	Warn Severity = "warn" // it works, but slower or less safely
	Fail Severity = "fail" // something does not work, or will not
)

// Status is the outcome of a rule.
type Status string

// The statuses in addition to those of a [Severity].
const (
	OK      Status = "ok"
	Unknown Status = "unknown" // a fact is missing
	Skipped Status = "skipped" // there is nothing to check, or --ignore names the rule
)

// Statuses are all statuses, the worst first.
var Statuses = []Status{Status(Fail), Status(Warn), Unknown, Skipped, OK}

// Rule is a rule as data. Its texts are for users: they end up in reports and in the
// reference.
type Rule struct {
	// ID is upper case with hyphens, GROUP-WORD. It never changes, because users name it in
	// --ignore and in alerts.
	ID       string
	Scope    Scope
	Severity Severity
	// Expects is a sentence about how things should be.
	Expects string
	// Consequence describes the effect of a finding, and Cure how to end the problem.
	Consequence, Cure string
	// Slow rules need facts that take long to read: rail-agent judges them every five
	// minutes rather than every minute.
	Slow bool
	// API: the rule needs facts of the API server, which rail-agent may not read. So the agent
	// does not judge it.
	API bool
	// Check reports findings. It is a pure function of the facts.
	Check func(f *Facts, r *Report)
}

// Finding is one thing that a rule found.
type Finding struct {
	Object   string `json:"object"`        // what it is about: "NIC ens1", "pod default/a"; empty for the node
	Evidence string `json:"evidence"`      // the facts, with their values
	Fix      string `json:"fix,omitempty"` // a command that does the cure, if there is one
	// Rail is set if the finding is about a rail of the node, and Object does not name its NIC.
	Rail *int `json:"rail,omitempty"`
	// Part distinguishes findings about one object, and stays the same while the evidence
	// changes: "net2" of a pod, the file of a record.
	Part string `json:"-"`
}

// Result is the outcome of a rule.
type Result struct {
	ID          string    `json:"id"`
	Scope       Scope     `json:"scope"`
	Node        string    `json:"node,omitempty"` // whose facts they were
	Status      Status    `json:"status"`
	Expects     string    `json:"expects"`
	Findings    []Finding `json:"findings,omitempty"`
	Missing     []string  `json:"missing,omitempty"` // facts that could not be read, and why
	Consequence string    `json:"consequence,omitempty"`
	Cure        string    `json:"cure,omitempty"`

	reasons []string // why each of Missing could not be read
}

// Report takes what the check of one rule finds.
type Report struct {
	objects  int // that the rule has judged
	findings []Finding
	missing  []missing
	parts    []string // of the object that is judged now
	parsed   *parsed
}

// missing is a fact that could not be read.
type missing struct {
	text   string // its name, source and error
	reason string // the error alone, which several facts can have
}

// parsed has what several rules make of the same facts.
type parsed struct {
	networks []*network
	forPods  map[*NIC]bool // the NICs of eachRail, nil before the first rule that needs them
}

// judged notes that the rule has judged one more object. A rule that has judged none is skipped,
// never ok: facts that name no object are no proof of health.
func (r *Report) judged() { r.objects++ }

// lacks notes a fact that could not be read.
func (r *Report) lacks(name, why string) {
	r.missing = append(r.missing, missing{fmt.Sprintf("%s (%s)", name, why), why})
}

// maxFindings bounds the findings of one rule: the facts may be of an attacker.
const maxFindings = 1000

// Find reports a finding about an object. The evidence names facts and their values.
func (r *Report) Find(object, evidence string, args ...any) *Found {
	if len(r.findings) < maxFindings {
		r.findings = append(r.findings, Finding{Object: clean(object), Evidence: clean(fmt.Sprintf(evidence, args...)), Part: clean(strings.Join(r.parts, " "))})
		return &Found{&r.findings[len(r.findings)-1]}
	}
	return &Found{&Finding{}}
}

// within calls do, whose findings are about a part of their object: a pod's interface.
func (r *Report) within(part string, do func()) {
	r.parts = append(r.parts, part)
	defer func() { r.parts = r.parts[:len(r.parts)-1] }()
	do()
}

// Found is a finding that was reported.
type Found struct{ f *Finding }

// Part sets the part of its object that the finding is about, if a rule may have findings about
// several.
func (f *Found) Part(part string) *Found {
	f.f.Part = clean(strings.TrimSpace(f.f.Part + " " + part))
	return f
}

// OnRail sets the rail that the finding is about, if it is not that of the NIC in Object.
func (f *Found) OnRail(rail int) *Found {
	f.f.Rail = &rail
	return f
}

// Fix adds a command that does the cure.
func (f *Found) Fix(command string, args ...any) { f.f.Fix = clean(fmt.Sprintf(command, args...)) }

// clean returns text without characters that cannot be printed, which a name in a facts file
// or of a pod may have, and of a bounded length.
func clean(text string) string {
	const maxText = 1000
	if len(text) > maxText {
		text = text[:maxText] + " …"
	}
	return strings.Map(func(c rune) rune {
		if strconv.IsPrint(c) {
			return c
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// Judge returns the results of the rules over facts, in the order of the rules.
func Judge(rules []Rule, f *Facts) []Result {
	results := make([]Result, 0, len(rules))
	once := &parsed{}
	for i := range rules {
		results = append(results, judge(&rules[i], f, once))
	}
	return results
}

func judge(rule *Rule, f *Facts, once *parsed) (result Result) {
	result = Result{ID: rule.ID, Scope: rule.Scope, Node: clean(f.Node), Expects: rule.Expects}
	report := &Report{parsed: once}
	err := contain.Panics(func() error { rule.Check(f, report); return nil })
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		result.Status = Unknown
		result.Missing = []string{clean(fmt.Sprintf("the rule panicked: %v; please report this defect: %s", p.Value, firstFrames(p.Stack)))}
		result.reasons = result.Missing
		return result
	}
	result.Findings = report.findings
	slices.SortFunc(report.missing, func(a, b missing) int { return cmp.Or(cmp.Compare(a.text, b.text), cmp.Compare(a.reason, b.reason)) })
	for _, m := range slices.Compact(report.missing) {
		result.Missing, result.reasons = append(result.Missing, clean(m.text)), append(result.reasons, clean(m.reason))
	}
	switch {
	case len(result.Findings) > 0:
		result.Status = Status(rule.Severity)
		result.Consequence, result.Cure = rule.Consequence, linked(rule.Cure, f.Version)
	case len(result.Missing) > 0:
		result.Status = Unknown
	case report.objects == 0:
		result.Status = Skipped
	default:
		result.Status = OK
	}
	return result
}

var (
	pageName = regexp.MustCompile(`\bdocs/[a-z/-]+\.md\b`)
	release  = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`)
)

// linked returns a text in which pages of this project have their addresses, those of the version
// if it is a release: a node has no copy of them.
func linked(text, version string) string {
	ref := "main"
	if release.MatchString(version) {
		ref = version
	}
	return pageName.ReplaceAllString(text, "https://github.com/rail-cni/rail-cni/blob/"+ref+"/$0")
}

// firstFrames returns the frames of a stack that name this package.
func firstFrames(stack []byte) string {
	var frames []string
	for line := range strings.Lines(string(stack)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "/pkg/doctor/") && len(frames) < 3 {
			frames = append(frames, line)
		}
	}
	return strings.Join(frames, ", ")
}

// Skip sets the status of the results with these IDs to Skipped.
func Skip(results []Result, ids []string) {
	for i := range results {
		if r := &results[i]; slices.Contains(ids, r.ID) {
			*r = Result{ID: r.ID, Scope: r.Scope, Node: r.Node, Status: Skipped, Expects: r.Expects}
		}
	}
}

// Worst returns the status of the whole: fail if a rule failed, else warn, else unknown,
// else ok.
func Worst(results []Result) Status {
	for _, s := range Statuses[:3] {
		if slices.ContainsFunc(results, func(r Result) bool { return r.Status == s }) {
			return s
		}
	}
	return OK
}
