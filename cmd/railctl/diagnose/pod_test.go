package diagnose

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func TestDoctorOfAPodIsAboutNoOther(t *testing.T) {
	one, two := 1, 2
	nic := func(name, holder string, rail *int) fact.NIC {
		return fact.NIC{Name: name, Holder: holder, Rail: rail, AdminUp: fact.Known(true, "test"), Carrier: fact.Known(false, "test")}
	}
	f := &fact.Facts{
		Schema: fact.Schema,
		NICs:   &fact.NICs{List: fact.Known([]fact.NIC{nic("ens1", "default/a", &one), nic("ens10", "default/b", &two), nic("ens2", "", nil)}, "test")},
		Pods:   []fact.Pod{{Namespace: "default", Name: "a"}, {Namespace: "default", Name: "b"}},
	}
	results, err := judgePod(doctor.Rules(), f, "default/a")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range results {
		for _, finding := range r.Findings {
			found = true
			if finding.Object != "NIC ens1" {
				t.Errorf("%s is about %q", r.ID, finding.Object)
			}
		}
		if r.Scope != rule.PodScope && len(r.Findings) == 0 {
			t.Errorf("%s of the node is listed without a finding", r.ID)
		}
	}
	if !found {
		t.Error("nothing is found about the pod's NIC, which has no carrier")
	}
	for name, want := range map[string]string{"default/c": "holds no NIC on this node", "c": "default/c", "a/b/c": "NAMESPACE/NAME"} {
		if _, err := judgePod(doctor.Rules(), f, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pod %s: %v", name, err)
		}
	}
}
