// Package ruletest judges facts by single rules of the doctor, for their tests.
package ruletest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// Find returns the findings of the rule with this ID, which must be among the rules, and its status.
func Find(t testing.TB, rules []rule.Rule, f *fact.Facts, id string) ([]rule.Finding, rule.Status) {
	t.Helper()
	results := rule.Judge(rules, f)
	i := slices.IndexFunc(results, func(r rule.Result) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("there is no rule %s", id)
	}
	return results[i].Findings, results[i].Status
}

// Evidence returns the evidence of the findings of the rule with this ID, each with its object.
func Evidence(t testing.TB, rules []rule.Rule, f *fact.Facts, id string) string {
	t.Helper()
	findings, _ := Find(t, rules, f, id)
	var all []string
	for _, x := range findings {
		all = append(all, x.Object+": "+x.Evidence)
	}
	return strings.Join(all, "\n")
}

// errAway is why a fact is missing that a test has taken away.
var errAway = errors.New("permission denied")

// Away makes the fact one that could not be read.
func Away[T any](f *fact.Fact[T]) { *f = fact.Failed[T]("test", errAway) }

// NADs returns facts of networks with these configurations: default/a, default/b and so on.
func NADs(texts ...string) *fact.Facts {
	var networks []fact.Config
	for i, text := range texts {
		networks = append(networks, fact.Config{Kind: fact.NADConfig, Name: "default/" + string(rune('a'+i)), Text: text})
	}
	return &fact.Facts{Schema: fact.Schema, Configs: &fact.Configs{
		Files: fact.Known([]fact.Config{}, "test"), NADs: fact.Known(networks, "test"), Networks: fact.Known(map[string][]string{}, "test"),
	}}
}
