package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// groups are the groups of rules in the order of the page. The name is the beginning of the rules'
// IDs.
var groups = []struct{ name, title string }{
	{"HOST", "the machine"},
	{"NIC", "NICs and their ports"},
	{"IB", "InfiniBand"},
	{"VF", "virtual functions"},
	{"RAIL", "rails"},
	{"LEDGER", "attachments"},
	{"AGENT", "rail-agent"},
	{"CNI", "plugins and networks"},
	{"IPAM", "addresses"},
	{"NODE", "the node file"},
	{"DP", "device pools"},
	{"K8S", "Kubernetes"},
	{"POD", "pods"},
	{"CLUSTER", "comparison of nodes"},
	{"VER", "versions"},
}

func groupOf(id string) int {
	name, _, _ := strings.Cut(id, "-")
	for i, g := range groups {
		if g.name == name {
			return i
		}
	}
	return -1
}

func TestChecksByHandNameRules(t *testing.T) {
	const page = "docs/reference/doctor-rules.md"
	rows := docs.Rows(docs.Section(t, page, "What people check by hand"))
	if len(rows) == 0 {
		t.Fatalf("%s has no table", page)
	}
	for _, row := range rows {
		for _, id := range docs.Code(row[2]) {
			isRule := slices.ContainsFunc(Rules(), func(r rule.Rule) bool { return r.ID == id })
			if !isRule && !strings.HasPrefix(id, "railctl ") {
				t.Errorf("%s: there is no rule %s", page, id)
			}
		}
	}
}

func TestRulesPageIsGenerated(t *testing.T) {
	rules := Rules()
	slices.SortStableFunc(rules, func(a, b rule.Rule) int { return cmp.Compare(groupOf(a.ID), groupOf(b.ID)) })
	var index, texts strings.Builder
	group := -1
	for _, r := range rules {
		g := groupOf(r.ID)
		if g < 0 {
			t.Fatalf("the group of %s has no title", r.ID)
		}
		if g != group {
			group = g
			fmt.Fprintf(&index, "\n%s, %s:\n", groups[g].name, groups[g].title)
			fmt.Fprintf(&texts, "\n## %s: %s\n", groups[g].name, groups[g].title)
		}
		fmt.Fprintf(&index, "[%s](#%s)\n", strings.TrimPrefix(r.ID, groups[g].name+"-"), strings.ToLower(r.ID))
		slow := ""
		if r.Slow {
			slow = ", slow"
		}
		if r.API {
			slow += ", not checked by rail-agent"
		}
		fmt.Fprintf(&texts, "\n### %s\n\n%s, %s%s\n\n- Expected: %s\n- Consequence: %s\n- Cure: %s\n", r.ID, r.Scope, r.Severity, slow, r.Expects, r.Consequence, r.Cure)
	}
	docs.Generated(t, "docs/reference/doctor-rules.md", "rules", index.String()+texts.String()+"\n")
}
