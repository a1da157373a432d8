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

// These are the scopes.
const (
	NodeScope    Scope = "node"
	PodScope     Scope = "pod"
	ClusterScope Scope = "cluster"
	ConfigScope  Scope = "config"
)

// Scopes lists all scopes in the order in which reports show them.
var Scopes = []Scope{NodeScope, PodScope, ClusterScope, ConfigScope}

// Severity is the status of a rule with findings.
type Severity string

// These are the severities.
const (
	Warn Severity = "warn" // something works, but slower or less safely
	Fail Severity = "fail" // something does not work, or will not
)

// Status is the outcome of a rule.
type Status string

// A status is one of these, or one of the severities ([Warn], [Fail]).
const (
	OK      Status = "ok"
	Unknown Status = "unknown" // a fact is missing
	Skipped Status = "skipped" // there is nothing to check, or --ignore names the rule
)

// Statuses lists all statuses, the worst status first.
var Statuses = []Status{Status(Fail), Status(Warn), Unknown, Skipped, OK}

// Rule is a rule as data. Its texts are for users, who read them in reports and in the reference of
// the rules.
type Rule struct {
	// ID has upper-case words with hyphens: GROUP-WORD. An ID never changes, because users name it
	// in --ignore and in alerts.
	ID       string
	Scope    Scope
	Severity Severity
	// Expects is a sentence that describes the healthy state.
	Expects string
	// Consequence describes what happens because of the problem. Cure describes how to solve the
	// problem.
	Consequence, Cure string
	// Slow is true if the rule needs facts that take long to read. rail-agent judges slow rules
	// every five minutes, and the other rules every minute.
	Slow bool
	// API is true if the rule needs facts from the API server. rail-agent may not read these facts,
	// so it does not judge the rule.
	API bool
	// Check reports findings to r. It is a pure function of the facts f.
	Check func(f *Facts, r *Report)
}

// Finding is one thing that a rule found.
type Finding struct {
	Object   string `json:"object"`        // what the finding is about: "NIC ens1", "pod default/a"; empty for the node
	Evidence string `json:"evidence"`      // the facts that show the problem, with their values
	Fix      string `json:"fix,omitempty"` // a command that solves the problem, if there is one
	// Rail is set if the finding is about a rail of the node and Object does not name the rail's
	// NIC.
	Rail *int `json:"rail,omitempty"`
	// Part distinguishes findings about the same object: for example "net2" for an interface of a
	// pod, or the file of a record. It stays the same while the evidence changes.
	Part string `json:"-"`
}

// Result is the outcome of a rule.
type Result struct {
	ID          string    `json:"id"`
	Scope       Scope     `json:"scope"`
	Node        string    `json:"node,omitempty"` // the node whose facts were judged
	Status      Status    `json:"status"`
	Expects     string    `json:"expects"`
	Findings    []Finding `json:"findings,omitempty"`
	Missing     []string  `json:"missing,omitempty"` // the facts that could not be read, each with the reason
	Consequence string    `json:"consequence,omitempty"`
	Cure        string    `json:"cure,omitempty"`

	reasons []string // for each element of Missing, the reason alone
}

// Report collects the findings of one rule.
type Report struct {
	objects  int // the number of objects that the rule has judged
	findings []Finding
	missing  []missing
	parts    []string // the parts of the object that the rule judges now
	parsed   *parsed
}

// missing is a fact that could not be read.
type missing struct {
	text   string // the fact's name, source and error
	reason string // the error alone; several facts can have the same error
}

// parsed has results that are computed once from the facts and used by several rules.
type parsed struct {
	networks []*network
	forPods  map[*NIC]bool // the NICs of eachRail, nil before the first rule that needs them
}

// judged notes that the rule has judged one more object. A rule that has judged no object is
// skipped and never ok, because facts that name no object do not prove that anything is healthy.
func (r *Report) judged() { r.objects++ }

// lacks notes that the fact name could not be read, with the reason why.
func (r *Report) lacks(name, why string) {
	r.missing = append(r.missing, missing{fmt.Sprintf("%s (%s)", name, why), why})
}

// maxFindings limits the number of findings of one rule, because the facts may come from an
// attacker.
const maxFindings = 1000

// Find adds a finding about the object. The evidence is a format with its arguments. It names facts
// and their values.
func (r *Report) Find(object, evidence string, args ...any) *Found {
	if len(r.findings) < maxFindings {
		r.findings = append(r.findings, Finding{Object: clean(object), Evidence: clean(fmt.Sprintf(evidence, args...)), Part: clean(strings.Join(r.parts, " "))})
		return &Found{&r.findings[len(r.findings)-1]}
	}
	return &Found{&Finding{}}
}

// within calls do. All findings that do reports are about this part of their object, for example
// about an interface of a pod.
func (r *Report) within(part string, do func()) {
	r.parts = append(r.parts, part)
	defer func() { r.parts = r.parts[:len(r.parts)-1] }()
	do()
}

// Found is a finding that was reported.
type Found struct{ f *Finding }

// Part sets the part of the object that the finding is about. A rule needs Part if it can have
// findings about several parts of one object.
func (f *Found) Part(part string) *Found {
	f.f.Part = clean(strings.TrimSpace(f.f.Part + " " + part))
	return f
}

// OnRail sets the rail that the finding is about. It is not needed if Object names the rail's NIC.
func (f *Found) OnRail(rail int) *Found {
	f.f.Rail = &rail
	return f
}

// Fix adds a command that solves the problem.
func (f *Found) Fix(command string, args ...any) { f.f.Fix = clean(fmt.Sprintf(command, args...)) }

// clean returns text with "?" in place of each character that cannot be printed, and cut to a
// maximum length. Names in a file of facts, or chosen by a pod, may have such characters.
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

// Judge judges the facts by the rules. It returns one result for each rule, in the order of the
// rules.
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

// linked returns text with a web address in place of each file name of a page of this project,
// because a node has no copy of the pages. If version is a release, the addresses lead to the pages
// of that release.
func linked(text, version string) string {
	ref := "main"
	if release.MatchString(version) {
		ref = version
	}
	return pageName.ReplaceAllString(text, "https://github.com/rail-cni/rail-cni/blob/"+ref+"/$0")
}

// firstFrames returns the first three frames of a stack trace that name this package.
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

// Worst returns the worst status of all results: fail if a rule failed, otherwise warn if a rule
// warned, otherwise unknown if a rule is unknown, and otherwise ok.
func Worst(results []Result) Status {
	for _, s := range Statuses[:3] {
		if slices.ContainsFunc(results, func(r Result) bool { return r.Status == s }) {
			return s
		}
	}
	return OK
}
