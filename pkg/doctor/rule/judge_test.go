package rule

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func TestPanicOfARuleIsItsOwnAffair(t *testing.T) {
	var none *fact.Facts
	rules := []Rule{
		{ID: "A-A", Check: func(_ *fact.Facts, r *Report) { r.Find("", "%s", none.Node) }},
		{ID: "B-B", Severity: Warn, Check: func(_ *fact.Facts, r *Report) { r.Find("pod a\x1b[2J/b", "x\ny") }},
	}
	got := Judge(rules, &fact.Facts{})
	if got[0].Status != Unknown || !strings.Contains(got[0].Missing[0], "panicked") || !strings.Contains(got[0].Missing[0], "judge_test.go:") {
		t.Errorf("%+v", got[0])
	}
	if got[1].Status != Status(Warn) || got[1].Findings[0] != (Finding{Object: "pod a?[2J/b", Evidence: "x?y"}) {
		t.Errorf("%+v", got[1])
	}
}
