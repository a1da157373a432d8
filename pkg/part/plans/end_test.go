package plans_test

import (
	"context"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// TestEndLeavesAnAttachmentThatHasTheNameNow ends an attachment that was found
// stale, after the runtime has reused its name.
func TestEndLeavesAnAttachmentThatHasTheNameNow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(nil)
	b.node.MustRun(b.call("ADD", config))
	n := b.open()
	b.pod.Delete()
	stale, errs := n.Stale()
	if len(stale) != 1 || len(errs) > 0 {
		t.Fatal(stale, errs)
	}
	b.node.MustRun(b.call("DEL", config))
	b.pod = testnet.NewNetns(t, "pod")
	b.node.MustRun(b.call("ADD", config))
	if err := n.End(context.Background(), stale[0], 0); err != nil {
		t.Error(err)
	}
	if _, err := link.ByName(b.pod.Netns, "net1"); err != nil || len(b.records()) != 1 {
		t.Errorf("the new pod has lost its interface: %v, %d records", err, len(b.records()))
	}
	// In any case it is not ended while its pod lives.
	if err := n.End(context.Background(), b.records()[0], 0); err != nil || len(b.records()) != 1 {
		t.Error(err, b.records())
	}
	b.pod.Delete()
	stale, errs = n.Stale()
	if len(stale) != 1 || len(errs) > 0 {
		t.Fatal(stale, errs)
	}
	if err := n.End(context.Background(), stale[0], attachment.SweepWait); err != nil || len(b.records()) != 0 {
		t.Error(err, b.records())
	}
}
