package nic

import (
	"os"
	"path/filepath"
	"testing"
)

// charDevices makes the classes of char devices below dir.
func charDevices(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(dir, "class", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFreeBelowIsWhatTheKernelWouldTake(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	charDevices(t, h.Sys, "infiniband_verbs/uverbs0", "infiniband_verbs/uverbs1", "infiniband_verbs/uverbs3", "infiniband_verbs/abi_version",
		"infiniband_mad/umad0", "infiniband_mad/issm0", "infiniband_mad/umad2")
	for path, want := range map[string]string{"uverbs0": "", "uverbs1": "", "uverbs3": "uverbs2", "umad0": "", "umad2": "umad1", "issm7": ""} {
		if want != "" {
			want = CharDevice(want)
		}
		if got := h.FreeBelow([]string{CharDevice(path)}); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := h.FreeBelow(nil); got != "" {
		t.Errorf("no char devices: %q", got)
	}
}

func TestADriverIsBoundByItsName(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	const pci = "0000:3b:02.1"
	for _, dir := range []string{"bus/pci/devices/" + pci, "bus/pci/drivers/mlx5_core"} {
		if err := os.MkdirAll(filepath.Join(h.Sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bind := filepath.Join(h.Sys, "bus/pci/drivers/mlx5_core/bind")
	if err := os.WriteFile(bind, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Bind(pci, "mlx5_core"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(bind); err != nil || string(text) != pci {
		t.Errorf("%q, %v", text, err)
	}
	for _, c := range [][2]string{{pci, "../devices"}, {pci, ""}, {"0000:3b:02.2", "mlx5_core"}, {"..", "mlx5_core"}} {
		if err := h.Bind(c[0], c[1]); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
}
