package rdma

import "testing"

func TestADeviceIsKnownWhereverItIs(t *testing.T) {
	d := Device{Index: 3, Name: "mlx5_3", NodeGUID: 7}
	for _, c := range []struct {
		other Device
		same  bool
	}{
		{Device{Index: 3, Name: "rail3", NodeGUID: 7, ParentDev: "0000:3b:00.0"}, true},
		{Device{Index: 3, Name: "mlx5_3", NodeGUID: 8}, false},
		{Device{Index: 4, Name: "mlx5_3", NodeGUID: 7}, false},
	} {
		if d.Is(c.other) != c.same {
			t.Errorf("%+v: %v", c.other, !c.same)
		}
	}
}

func TestStatesHaveTheKernelsNames(t *testing.T) {
	for got, want := range map[string]string{
		PortActive.String(): "ACTIVE", PortState(9).String(): "state 9", PhysLinkUp.String(): "LINK_UP",
		PhysDisabled.String(): "DISABLED", NodeCA.String(): "CA", NodeRNIC.String(): "RNIC", NodeType(0).String(): "node type 0",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
