package doctor

import (
	"strings"
	"testing"
)

// TestLineBeginsWithWhatFails: node-problem-detector keeps only the first 80 bytes of the line, so
// the failed rules must come first.
func TestLineBeginsWithWhatFails(t *testing.T) {
	fail := func(id string, findings ...Finding) Result {
		return Result{ID: id, Status: Status(Fail), Findings: findings}
	}
	carrier := fail("NIC-CARRIER", Finding{Object: "NIC ens12np0", Evidence: "it is up and has no\ncarrier"}, Finding{Object: "NIC ens13np0", Evidence: "it too"})
	for want, results := range map[string][]Result{
		"NIC-CARRIER: NIC ens12np0: it is up and has no carrier\n":                                                      {{ID: "A", Status: OK}, carrier, {ID: "B", Status: Unknown}},
		"2 rules fail. NIC-CARRIER: NIC ens12np0: it is up and has no carrier; HOST-MODULES: ib_uverbs is not loaded\n": {carrier, fail("HOST-MODULES", Finding{Evidence: "ib_uverbs is not loaded"})},
		"no rule fails: 1 ok, 1 warn, 1 unknown, 0 skipped\n":                                                           {{Status: OK}, {Status: Status(Warn)}, {Status: Unknown}},
		"no rule could be checked: 2 lack facts\n":                                                                      {{Status: Unknown}, {Status: Unknown}, {Status: Skipped}},
	} {
		var b strings.Builder
		if err := WriteLine(&b, results); err != nil || b.String() != want {
			t.Errorf("%q, want %q; %v", b.String(), want, err)
		}
	}
}
