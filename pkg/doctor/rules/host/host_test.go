package host

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func TestUplinkOfANodeWithoutRDMANeedsNoModules(t *testing.T) {
	n := fact.NIC{Name: "eno1", Driver: "ice", Vendor: "8086", Ports: fact.Known([]fact.Port{}, "test")}
	f := &fact.Facts{Schema: fact.Schema, Host: &fact.Host{Modules: fact.Known([]string{"ice"}, "test")}, NICs: &fact.NICs{List: fact.Known([]fact.NIC{n}, "test")}}
	if got := ruletest.Evidence(t, Rules(), f, "HOST-MODULES"); got != "" {
		t.Error(got)
	}
	f.NICs.List.Value[0].Rail = &[]int{0}[0]
	if got := ruletest.Evidence(t, Rules(), f, "HOST-MODULES"); !strings.Contains(got, "ib_core") {
		t.Errorf("of a rail: %q", got)
	}
}
