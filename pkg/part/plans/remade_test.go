package plans_test

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// A kernel without cookies gives the inode number of a dead pod's netns to the next netns. The pod
// in that netns does not lack the device of the dead pod, and must not get the device.
func TestRemadeDeviceIsNotMissingInAnotherPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	n := b.open()
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Plugin: "rdma", Phase: ledger.Lent, Created: time.Now().UTC(),
		HostNetns: n.HostNetns(),
		RDMA: &ledger.RDMA{Mode: string(rdma.Exclusive), Devices: []ledger.RDMADevice{
			{Name: "mlx5_77", NodeGUID: 77, ParentDev: "ffff:77:00.0", Lent: true}, // it exists nowhere
		}},
	}
	for path, want := range map[string]int{"/run/netns/" + b.pod.Name: 1, "/run/netns/dead": 0} {
		r.Netns = ledger.Netns{ID: netns.ID{Inode: b.pod.ID.Inode}, Path: path}
		if missing, err := rdmadev.Missing(n, r); err != nil || len(missing) != want {
			t.Errorf("%s: missing: %v, %v", path, missing, err)
		}
	}
}
