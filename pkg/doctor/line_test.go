package doctor

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// TestLineBeginsWithWhatFails: node-problem-detector keeps only the first 80 bytes of the line, so
// the failed rules must come first.
func TestLineBeginsWithWhatFails(t *testing.T) {
	fail := func(id string, findings ...rule.Finding) rule.Result {
		return rule.Result{ID: id, Status: rule.Status(rule.Fail), Findings: findings}
	}
	carrier := fail("NIC-CARRIER", rule.Finding{Object: "NIC ens12np0", Evidence: "it is up and has no\ncarrier"}, rule.Finding{Object: "NIC ens13np0", Evidence: "it too"})
	for want, results := range map[string][]rule.Result{
		"NIC-CARRIER: NIC ens12np0: it is up and has no carrier\n":                                                      {{ID: "A", Status: rule.OK}, carrier, {ID: "B", Status: rule.Unknown}},
		"2 rules fail. NIC-CARRIER: NIC ens12np0: it is up and has no carrier; HOST-MODULES: ib_uverbs is not loaded\n": {carrier, fail("HOST-MODULES", rule.Finding{Evidence: "ib_uverbs is not loaded"})},
		"no rule fails: 1 ok, 1 warn, 1 unknown, 0 skipped\n":                                                           {{Status: rule.OK}, {Status: rule.Status(rule.Warn)}, {Status: rule.Unknown}},
		"no rule could be checked: 2 lack facts\n":                                                                      {{Status: rule.Unknown}, {Status: rule.Unknown}, {Status: rule.Skipped}},
	} {
		var b strings.Builder
		if err := WriteLine(&b, results); err != nil || b.String() != want {
			t.Errorf("%q, want %q; %v", b.String(), want, err)
		}
	}
}
