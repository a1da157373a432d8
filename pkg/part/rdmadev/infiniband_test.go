package rdmadev

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestOnlyAnInfiniBandInterfaceIsLostWhenItsRDMADeviceMoves(t *testing.T) {
	for _, l := range []*link.Link{nil, {Name: "ens1", Encap: "ether"}} {
		if err := losesInfiniBand(l, "mlx5_0"); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if err := losesInfiniBand(&link.Link{Name: "ib0", Encap: "infiniband"}, "mlx5_2"); err == nil || !strings.Contains(err.Error(), "mlx5_2") {
		t.Errorf("error %v, want one that names the RDMA device", err)
	}
}
