package rdmadev

import (
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

func TestOtherMembersOfABondThatADeviceServes(t *testing.T) {
	bond := &link.Link{Index: 4, Name: "bond0", Kind: "bond"}
	first := &link.Link{Index: 2, Name: "ens1", Kind: "device", Master: 4}
	second := &link.Link{Index: 3, Name: "ens2", Kind: "device", Master: 4}
	links := []*link.Link{{Index: 1, Name: "lo"}, first, second, bond}
	device := func(name string, netdev *link.Link) rdma.Serving {
		return rdma.Serving{Device: rdma.Device{Name: name}, Port: 1, Netdev: netdev}
	}
	for name, c := range map[string]struct {
		devices       []rdma.Serving
		first, second []string
	}{
		"one each":                      {[]rdma.Serving{device("mlx5_0", first), device("mlx5_1", second)}, nil, nil},
		"one for the bond":              {[]rdma.Serving{device("mlx5_bond_0", bond)}, []string{"ens2"}, []string{"ens1"}},
		"one, now of the first member":  {[]rdma.Serving{device("mlx5_bond_0", first)}, []string{"ens2"}, []string{"ens1"}},
		"one, now of the second member": {[]rdma.Serving{device("mlx5_bond_0", second)}, []string{"ens2"}, []string{"ens1"}},
		"none":                          {nil, nil, nil},
	} {
		if _, others := sharedBy(c.devices, links, first); !slices.Equal(others, c.first) {
			t.Errorf("%s: the first member shares its device with %v, not %v", name, others, c.first)
		}
		if _, others := sharedBy(c.devices, links, second); !slices.Equal(others, c.second) {
			t.Errorf("%s: the second member shares its device with %v, not %v", name, others, c.second)
		}
	}
}

func TestDevicesOfWhichOneIsEnough(t *testing.T) {
	for name, c := range map[string]struct {
		netdevs []string
		want    bool
	}{
		"of a NIC":                    {[]string{""}, false},
		"of a NIC with two devices":   {[]string{"", ""}, false},
		"of a VLAN's NIC":             {[]string{"ens1"}, false},
		"of the two members":          {[]string{"ens1", "ens2"}, true},
		"of a bond and of its member": {[]string{"", "ens2"}, false},
	} {
		r := &ledger.RDMA{}
		for _, netdev := range c.netdevs {
			r.Devices = append(r.Devices, ledger.RDMADevice{Netdev: netdev})
		}
		if got := legs(r) != nil; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
