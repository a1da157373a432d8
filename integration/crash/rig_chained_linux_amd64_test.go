//go:build rig

package crash

import "testing"

// TestNoRDMADeviceIsLostWhereTheChainedPluginIsKilled is the sweep of the
// plugin rdma behind one that does not handle RDMA, so that rdma keeps a record
// of its own.
func TestNoRDMADeviceIsLostWhereTheChainedPluginIsKilled(t *testing.T) {
	sweepRail(t, chained, false)
}
