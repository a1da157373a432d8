package rdma

import (
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestPairsOfADevice(t *testing.T) {
	const carrier = 1 << 16 // IFF_LOWER_UP
	links := []*link.Link{
		{Index: 2, Name: "net1", Encap: "ether", ParentDev: "0000:0c:00.0", Flags: carrier},
		{Index: 3, Name: "rep0", Encap: "ether", ParentDev: "0000:0c:00.0"},
		{Index: 4, Name: "ib0", Encap: "infiniband", ParentDev: "0000:0d:00.0"},
		{Index: 5, Name: "ib0.8001", Encap: "infiniband", ParentDev: "0000:0d:00.0", Lower: 4},
		{Index: 6, Name: "ibx", Encap: "infiniband"},
	}
	roce := Device{Name: "mlx5_0", ParentDev: "0000:0c:00.0"}
	ib := Device{Name: "mlx5_1", ParentDev: "0000:0d:00.0"}
	for _, c := range []struct {
		device Device
		ports  []Port
		want   []Pair
	}{
		{
			roce,
			[]Port{{Number: 1, State: PortActive, Netdev: 2, LinkLayer: "Ethernet"}},
			[]Pair{{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, State: PortActive, LinkLayer: "Ethernet", Netdev: "net1", HasSignal: true}},
		},
		{roce, []Port{{Number: 1, Netdev: 2}, {Number: 2, Netdev: 3}}, []Pair{
			{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, Netdev: "net1", HasSignal: true}, {Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 2, Netdev: "rep0"},
		}},
		{roce, []Port{{Number: 1, LinkLayer: "Ethernet"}}, []Pair{{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, LinkLayer: "Ethernet"}}},
		{ib, []Port{{Number: 1, LinkLayer: "InfiniBand"}}, []Pair{{Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 1, LinkLayer: "InfiniBand", Netdev: "ib0"}}},
		{ib, []Port{{Number: 1, LinkLayer: "InfiniBand"}, {Number: 2, LinkLayer: "InfiniBand"}}, []Pair{
			{Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 1, LinkLayer: "InfiniBand"}, {Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 2, LinkLayer: "InfiniBand"},
		}},
		{Device{Name: "virtual"}, []Port{{Number: 1, LinkLayer: "InfiniBand"}}, []Pair{{Device: "virtual", Port: 1, LinkLayer: "InfiniBand"}}},
	} {
		if have := pairsOf(c.device, c.ports, links); !slices.Equal(have, c.want) {
			t.Errorf("%s %+v: %v, not %v", c.device.Name, c.ports, have, c.want)
		}
	}
}

func TestNamesAreSortedByTheirNumber(t *testing.T) {
	names := []string{"mlx5_10", "rocep1s0", "mlx5_2", "bnxt_re0", "mlx5_1", "mlx5_bond"}
	slices.SortFunc(names, byNumber)
	if want := []string{"bnxt_re0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond", "rocep1s0"}; !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
}
