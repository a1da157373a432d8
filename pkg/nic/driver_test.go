package nic

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestDriverOf(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	for dev, driver := range map[string]string{
		"pci/devices/0000:3b:00.0": "mlx5_core", "pci/devices/0000:3b:00.1": "vfio-pci", "auxiliary/devices/mlx5_core.sf.4": "mlx5_core.sf",
	} {
		dir := filepath.Join(h.Sys, "bus", dev)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../drivers/"+driver, filepath.Join(dir, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		nic  NIC
		want string
	}{
		"a PCI function":        {NIC{Link: &link.Link{ParentBus: "pci", ParentDev: "0000:3b:00.0"}, PCI: "0000:3b:00.0"}, "mlx5_core"},
		"a subfunction":         {NIC{Link: &link.Link{ParentBus: "auxiliary", ParentDev: "mlx5_core.sf.4"}, PCI: "0000:3b:00.0"}, "mlx5_core.sf"},
		"in user space's hands": {NIC{PCI: "0000:3b:00.1"}, "vfio-pci"},
		"without a driver":      {NIC{PCI: "0000:3b:00.7"}, ""},
		"a virtual link":        {NIC{Link: &link.Link{Kind: "veth"}}, ""},
	} {
		if got := h.driverOf(&c.nic); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
