package rule

import (
	"slices"
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

// About reports whether the finding is about the object with this name.
func (f *Finding) About(object string) bool { return f.Object == Clean(object) }

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

// Reason returns why the fact with this index in Missing could not be read. A result from a
// document has no separate reasons, so Reason returns the whole text of Missing[i].
func (r *Result) Reason(i int) string {
	if i < len(r.reasons) {
		return r.reasons[i]
	}
	return r.Missing[i]
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
