package railinfo

import (
	"fmt"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
)

// machineOf makes a machine with these functions.
func machineOf(t testing.TB, functions ...pcietest.Function) Machine {
	t.Helper()
	tree, root := pcietest.Machine(t, functions...)
	return Machine{Tree: tree, Root: root}
}

// railsAt returns the rails of a pod that has the NICs at these addresses, as rails 0, 1 ….
func railsAt(m Machine, layer string, addresses ...string) *Rails {
	r := &Rails{Schema: Schema, Pod: PodRef{UID: "0d6c", Namespace: "default", Name: "web-0", Node: "node-1"}}
	for i, address := range addresses {
		l := Rail{
			Rail: &i, IfName: fmt.Sprintf("net%d", i+1), RDMA: fmt.Sprintf("mlx5_%d", i), Port: 1, LinkLayer: layer, State: "ACTIVE", PCI: address,
			SpeedMbps: 400000, MTU: 9000, ActiveMTU: 4096, MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), SysImageGUID: fmt.Sprintf("5054:00ff:fe12:34%02x", i),
			CharDevices: []string{fmt.Sprintf("/dev/infiniband/issm%d", i), fmt.Sprintf("/dev/infiniband/umad%d", i), fmt.Sprintf("/dev/infiniband/uverbs%d", i)},
		}
		l.SetPlace(m.Tree, m.Tree.GPUs(), nil)
		r.Rails = append(r.Rails, l)
	}
	return r
}
