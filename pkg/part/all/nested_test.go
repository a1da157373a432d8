package all_test

import (
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestMacvlanEndsWhereTheHostNetnsIsGone ends the attachment of a nested runtime whose network
// namespace is gone, where the machine's first one may not be opened (a confined container).
// Nothing has to return there.
func TestMacvlanEndsWhereTheHostNetnsIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.call("ADD", b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
	b.node.MustRun(c)
	b.node.Delete()
	other := testnet.NewNetns(t, "other")
	confined := filepath.Join(t.TempDir(), "confined")
	writeExecutable(t, confined, "#!/bin/sh\nmount -t tmpfs none /proc/1 && exec "+filepath.Join(testnet.Bin(t), "macvlan")+"\n")
	c.Plugin = confined
	other.MustRun(c.With("DEL"))
	if len(b.records()) > 0 || len(b.held()) > 0 {
		t.Errorf("left: %v %v", b.records(), b.held())
	}
}
