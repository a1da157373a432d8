package rdma

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestPortThatServesAnInterface(t *testing.T) {
	bond := []*link.Link{{Index: 4, Name: "bond0"}, {Index: 2, Name: "ens1"}, {Index: 3, Name: "ens2"}}
	for name, c := range map[string]struct {
		ports  []Port
		port   uint32
		netdev string
		others []string
	}{
		"the interface's own":   {[]Port{{Number: 1, Netdev: 4, NetdevName: "bond0"}}, 1, "bond0", nil},
		"of a link below":       {[]Port{{Number: 1, Netdev: 3, NetdevName: "ens2"}}, 1, "ens2", nil},
		"of another NIC":        {[]Port{{Number: 1, Netdev: 7, NetdevName: "ens9"}}, 0, "", []string{"ens9"}},
		"no netdev":             {[]Port{{Number: 1}}, 0, "", nil},
		"two NICs, one is not":  {[]Port{{Number: 1, Netdev: 7, NetdevName: "ens9"}, {Number: 2, Netdev: 2, NetdevName: "ens1"}}, 2, "ens1", []string{"ens9"}},
		"two NICs, both are":    {[]Port{{Number: 1, Netdev: 2, NetdevName: "ens1"}, {Number: 2, Netdev: 3, NetdevName: "ens2"}}, 1, "ens1", nil},
		"a port without netdev": {[]Port{{Number: 1}, {Number: 2, Netdev: 2, NetdevName: "ens1"}}, 2, "ens1", nil},
	} {
		var s Serving
		for _, p := range c.ports {
			s.note(p, bond)
		}
		netdev := ""
		if s.Netdev != nil {
			netdev = s.Netdev.Name
		}
		if s.Port != c.port || netdev != c.netdev || !slices.Equal(s.Others, c.others) {
			t.Errorf("%s: port %d, netdev %q, others %v", name, s.Port, netdev, s.Others)
		}
	}
}

// A node has many NICs. A driver does not report the port of a NIC that is broken.
func TestABrokenDeviceHidesNoOthers(t *testing.T) {
	all := map[uint32]Device{}
	for i, name := range []string{"mlx5_0", "mlx5_1", "rxe0", "erdma_0", "mlx5_2"} {
		all[uint32(i)] = Device{Index: uint32(i), Name: name}
	}
	found := among(all, func(d Device) (Serving, error) {
		s := Serving{Device: d, Port: 1}
		s.ParentDev = "0000:3b:00.0"
		switch d.Name {
		case "mlx5_0":
			return Serving{}, unix.EIO
		case "mlx5_1":
			return Serving{}, ErrNotFound
		case "mlx5_2":
			s.Port = 0
		case "rxe0":
			s.ParentDev = ""
		}
		return s, nil
	})
	if len(found) != 1 || found[0].Name != "erdma_0" {
		t.Errorf("found %+v", found)
	}
}
