package software

import (
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// TestNICThatIsJustReturnedIsNoOrphan: a DEL may wait for the driver of a NIC although the pod's
// netns is already gone.
func TestNICThatIsJustReturnedIsNoOrphan(t *testing.T) {
	f := &fact.Facts{Schema: fact.Schema, Taken: time.Now(), Ledger: &fact.Ledger{}}
	a := fact.Attachment{Pod: "default/a", IfName: "net1", NIC: "ens1", Phase: "returning", Updated: f.Taken.Add(-30 * time.Second)}
	f.Ledger.Attachments = fact.Known([]fact.Attachment{a}, "test")
	if got := ruletest.Evidence(t, Rules(), f, "LEDGER-ORPHAN"); got != "" {
		t.Error(got)
	}
	f.Ledger.Attachments.Value[0].Updated = f.Taken.Add(-time.Hour)
	if got := ruletest.Evidence(t, Rules(), f, "LEDGER-ORPHAN"); !strings.Contains(got, "pod default/a") {
		t.Errorf("after an hour: %q", got)
	}
}
