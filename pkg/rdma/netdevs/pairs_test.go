package netdevs

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

func TestPairsOfADevice(t *testing.T) {
	const carrier = 1 << 16 // IFF_LOWER_UP
	links := []*link.Link{
		{Index: 2, Name: "net1", Encap: "ether", ParentDev: "0000:0c:00.0", Flags: carrier},
		{Index: 3, Name: "rep0", Encap: "ether", ParentDev: "0000:0c:00.0"},
		{Index: 4, Name: "ib0", Encap: "infiniband", ParentDev: "0000:0d:00.0"},
		{Index: 5, Name: "ib0.8001", Encap: "infiniband", ParentDev: "0000:0d:00.0", Lower: 4},
		{Index: 6, Name: "ibx", Encap: "infiniband"},
		{Index: 7, Name: "ib1", Encap: "infiniband", ParentDev: "0000:0e:00.0", PermMAC: ipoibAddress(0x58)},
		{Index: 8, Name: "ib2", Encap: "infiniband", ParentDev: "0000:0e:00.0", PermMAC: ipoibAddress(0x59), Flags: carrier},
		{Index: 10, Name: "ib3", Encap: "infiniband", ParentDev: "0000:0f:00.0", PermMAC: ipoibAddress(0x5a)},
		{Index: 9, Name: "net9", Encap: "infiniband", PermMAC: ipoibAddress(0x59), MAC: ipoibAddress(0x58)},
	}
	roce := rdma.Device{Name: "mlx5_0", ParentDev: "0000:0c:00.0"}
	ib := rdma.Device{Name: "mlx5_1", ParentDev: "0000:0d:00.0"}
	two := rdma.Device{Name: "mlx5_2", ParentDev: "0000:0e:00.0"}
	twoPorts := []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}, {Number: 2, LinkLayer: "InfiniBand"}}
	pair := Pair{Device: "mlx5_2", Parent: "0000:0e:00.0", LinkLayer: "InfiniBand"}
	at := func(port uint32, name string, signal, child bool) Pair {
		p := pair
		p.Port, p.Netdev, p.HasSignal, p.Child = port, name, signal, child
		return p
	}
	for _, c := range []struct {
		device rdma.Device
		ports  []rdma.Port
		guids  map[uint32]ibaddr.GUID
		want   []Pair
	}{
		{two, twoPorts, map[uint32]ibaddr.GUID{1: 0x58, 2: 0x59}, []Pair{at(1, "ib1", false, false), at(2, "ib2", true, false), at(2, "net9", false, true)}},
		{two, twoPorts, map[uint32]ibaddr.GUID{2: 0x59}, []Pair{at(1, "", false, false), at(2, "ib2", true, false), at(2, "net9", false, true)}},
		{two, twoPorts[:1], map[uint32]ibaddr.GUID{1: 0x77}, []Pair{at(1, "ib1", false, false), at(1, "ib2", true, false)}}, // its GUID is new
		{two, twoPorts, map[uint32]ibaddr.GUID{1: 0x5a}, []Pair{at(1, "", false, false), at(2, "", false, false)}},          // another device's port
		{
			roce,
			[]rdma.Port{{Number: 1, State: rdma.PortActive, Netdev: 2, LinkLayer: "Ethernet"}},
			nil,
			[]Pair{{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, State: rdma.PortActive, LinkLayer: "Ethernet", Netdev: "net1", HasSignal: true}},
		},
		{roce, []rdma.Port{{Number: 1, Netdev: 2}, {Number: 2, Netdev: 3}}, nil, []Pair{
			{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, Netdev: "net1", HasSignal: true}, {Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 2, Netdev: "rep0"},
		}},
		{roce, []rdma.Port{{Number: 1, LinkLayer: "Ethernet"}}, nil, []Pair{{Device: "mlx5_0", Parent: "0000:0c:00.0", Port: 1, LinkLayer: "Ethernet"}}},
		{ib, []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}}, nil, []Pair{{Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 1, LinkLayer: "InfiniBand", Netdev: "ib0"}}},
		{ib, []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}, {Number: 2, LinkLayer: "InfiniBand"}}, nil, []Pair{
			{Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 1, LinkLayer: "InfiniBand"}, {Device: "mlx5_1", Parent: "0000:0d:00.0", Port: 2, LinkLayer: "InfiniBand"},
		}},
		{rdma.Device{Name: "virtual"}, []rdma.Port{{Number: 1, LinkLayer: "InfiniBand"}}, nil, []Pair{{Device: "virtual", Port: 1, LinkLayer: "InfiniBand"}}},
	} {
		if have := ofDevice(c.device, c.ports, c.guids, links); !slices.Equal(have, c.want) {
			t.Errorf("%s %+v: %v, not %v", c.device.Name, c.ports, have, c.want)
		}
	}
}

// ipoibAddress returns the address of an interface of the port with this GUID.
func ipoibAddress(guid uint64) net.HardwareAddr {
	return binary.BigEndian.AppendUint64([]byte{0, 0, 0, 72, 0xfe, 0x80, 0, 0, 0, 0, 0, 0}, guid)
}

func TestNamesAreSortedByTheirNumber(t *testing.T) {
	names := []string{"mlx5_10", "rocep1s0", "mlx5_2", "bnxt_re0", "mlx5_1", "mlx5_bond"}
	slices.SortFunc(names, byNumber)
	if want := []string{"bnxt_re0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond", "rocep1s0"}; !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
}
