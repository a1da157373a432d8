package rule

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
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
	Check func(f *fact.Facts, r *Report)
}

// Select returns the rules that have one of the scopes. Without scopes it returns all rules.
func Select(rules []Rule, scopes ...Scope) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return len(scopes) > 0 && !slices.Contains(scopes, r.Scope) })
}
