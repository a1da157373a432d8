package nics

import (
	"fmt"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func TestNICThatIsJustLentNeedsNoCarrier(t *testing.T) {
	n := fact.NIC{Name: "ens1", Holder: "default/a", AdminUp: fact.Known(true, "test"), Carrier: fact.Known(false, "test"), Moving: true}
	f := &fact.Facts{Schema: fact.Schema, NICs: &fact.NICs{List: fact.Known([]fact.NIC{n}, "test")}}
	if got := ruletest.Evidence(t, Rules(), f, "NIC-CARRIER"); got != "" {
		t.Error(got)
	}
	f.NICs.List.Value[0].Moving = false
	if got := ruletest.Evidence(t, Rules(), f, "NIC-CARRIER"); got == "" {
		t.Error("NIC-CARRIER does not find a NIC that has no carrier in its pod")
	}
}

func TestECNIsJudgedOnlyWhereTheDriverTells(t *testing.T) {
	node := func(ecn ...fact.ECN) *fact.Facts {
		f := &fact.Facts{Schema: fact.Schema, NICs: &fact.NICs{List: fact.Known([]fact.NIC{}, "test")}}
		for i, e := range ecn {
			f.NICs.List.Value = append(f.NICs.List.Value, fact.NIC{Name: fmt.Sprint("ens", i), Driver: "mlx5_core", Rail: &[]int{i}[0], DCB: fact.Known(fact.DCB{Supported: true, PFC: "3"}, "test"), ECN: fact.Known(e, "test")})
		}
		return f
	}
	for _, c := range []struct {
		name   string
		facts  *fact.Facts
		status rule.Status
		want   string
	}{
		{"the kernel's own driver", node(fact.ECN{}, fact.ECN{}), rule.Skipped, ""},
		{"on where PFC is", node(fact.ECN{Known: true, NP: "3", RP: "3"}, fact.ECN{Known: true, NP: "3", RP: "3"}), rule.OK, ""},
		{"off on all rails", node(fact.ECN{Known: true, NP: "", RP: "3"}), rule.Status(rule.Warn), "NIC ens0: priority 3 has PFC, and the NIC has ECN on priorities none (np) and 3 (rp)"},
		{"another rail", node(fact.ECN{Known: true, NP: "3", RP: "3"}, fact.ECN{Known: true, NP: "3", RP: "3"}, fact.ECN{Known: true, NP: "3,4", RP: "3"}), rule.Status(rule.Warn), "NIC ens2: it has ECN on priorities 3,4 (np) and 3 (rp), and 2 of 3 have ECN on priorities 3 (np) and 3 (rp)"},
	} {
		if _, status := ruletest.Find(t, Rules(), c.facts, "NIC-ECN"); status != c.status {
			t.Errorf("%s: %s, want %s", c.name, status, c.status)
		}
		if have := ruletest.Evidence(t, Rules(), c.facts, "NIC-ECN"); have != c.want {
			t.Errorf("%s: %q", c.name, have)
		}
	}
}
