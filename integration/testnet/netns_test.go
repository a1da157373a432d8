package testnet_test

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestStateWaitsForACarrierThatTheKernelReportsLate has a cable of which both
// ends have the same index: the kernel then takes the link for one that is not
// stacked on another, and reports its carrier once a second only
// (linkwatch_urgent_event).
func TestStateWaitsForACarrierThatTheKernelReportsLate(t *testing.T) {
	t.Parallel()
	n, peer := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "peer")
	n.IP("link", "add", "ens1", "index", "77", "type", "veth", "peer", "name", "ens1-sw", "index", "77", "netns", peer.Name)
	peer.IP("link", "set", "ens1-sw", "up")
	for range 3 {
		n.IP("link", "set", "ens1", "up")
		before := n.State()
		time.Sleep(1100 * time.Millisecond)
		if d := testnet.Diff(before, n.State()); d != "" {
			t.Fatalf("the state changed by itself:\n%s", d)
		}
		n.IP("link", "set", "ens1", "down")
	}
}
