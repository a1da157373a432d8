package nic

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFactsOfADevice(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	type facts struct{ bound, netdev, rdma, oneNIC bool }
	of := func(device string) facts {
		return facts{h.Bound(device), h.HasNetdev(device), h.HasRDMADevice(device), h.HasOneNIC(device)}
	}
	if got := of("0000:3b:00.0"); got != (facts{}) {
		t.Errorf("without sysfs: %+v", got)
	}
	for _, dir := range []string{
		"bus/pci/devices/0000:3b:00.0/net", "bus/pci/devices/0000:3b:00.0/infiniband/mlx5_0",
		"bus/pci/devices/0000:3b:00.2/net/ens3", "bus/pci/devices/0000:3b:00.9",
		"bus/auxiliary/devices/mlx5_core.sf.4/infiniband", "bus/virtio/devices/virtio1/net", "bus/pci/drivers/x/net",
	} {
		if err := os.MkdirAll(filepath.Join(h.Sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// As in sysfs, links that may be dangling if only a part is mounted.
	for _, name := range []string{
		"pci/devices/0000:3b:00.0/driver", "pci/devices/0000:3b:00.2/driver", "pci/devices/0000:3b:00.2/physfn",
		"auxiliary/devices/mlx5_core.sf.4/driver", "virtio/devices/virtio1/driver",
	} {
		symlink(t, "../elsewhere", filepath.Join(h.Sys, "bus", name))
	}
	if err := os.WriteFile(filepath.Join(h.Sys, "bus/auxiliary/devices/mlx5_core.sf.4/sfnum"), []byte("4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]facts{
		"0000:3b:00.0":   {bound: true, netdev: true, rdma: true},
		"0000:3b:00.2":   {bound: true, netdev: true, oneNIC: true},
		"0000:3b:00.9":   {},
		"mlx5_core.sf.4": {bound: true, rdma: true, oneNIC: true},
		"virtio1":        {bound: true, netdev: true},
		"0000:99:00.0":   {},
		// Names that are not of devices.
		"": {}, ".": {}, "..": {}, "*": {}, "0000:3b:00.?": {}, "../drivers/x": {}, "0000:3b:00.0/../0000:3b:00.2": {}, "\x00": {},
	} {
		if got := of(device); got != want {
			t.Errorf("%q: %+v, want %+v", device, got, want)
		}
	}
}
