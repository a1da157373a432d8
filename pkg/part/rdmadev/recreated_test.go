package rdmadev

import (
	"maps"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The driver makes a device anew with its own defaults.
func TestSettingsOfADeviceMadeAnew(t *testing.T) {
	const tos, mode = "port 1: " + rdma.CMTypeOfService, "port 1: " + rdma.CMMode
	host := map[string]string{"adaptive-moderation": "off", tos: "106", mode: "RoCE v2"}
	ofNetwork := 96
	for name, c := range map[string]struct {
		recorded map[string]string
		tos      *int
		want     map[string]string
	}{
		"as on the host":     {host, nil, host},
		"with the network's": {host, &ofNetwork, map[string]string{"adaptive-moderation": "off", tos: "96", mode: "RoCE v2"}},
	} {
		device := rdma.Device{Name: "mlx5_0", Ports: 1}
		if got := inPod(device, ledger.RDMADevice{Settings: c.recorded}, c.tos); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if host[tos] != "106" {
		t.Error("the record was changed, by which the device returns")
	}
}
