package nic

import (
	"maps"
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

func TestVirtualFunctionsAreFoundByTheirNumbers(t *testing.T) {
	h := &Host{Sys: t.TempDir()}
	const physical = "0000:01:00.0"
	dir := filepath.Join(h.Sys, "bus/pci/devices", physical)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"virtfn0": "0000:01:00.2", "virtfn10": "0000:01:01.4", "virtfnx": "0000:01:00.3", "driver": "mlx5_core"} {
		symlink(t, "../"+target, filepath.Join(dir, link))
	}
	have, err := h.VirtualFunctions(physical)
	if want := map[int]string{0: "0000:01:00.2", 10: "0000:01:01.4"}; err != nil || !maps.Equal(have, want) {
		t.Errorf("%v, %v", have, err)
	}
	if number, ok := h.FunctionNumber(physical, "0000:01:01.4"); number != 10 || !ok {
		t.Errorf("number %d, %v", number, ok)
	}
	if _, ok := h.FunctionNumber(physical, "0000:01:00.3"); ok {
		t.Error("a link without a number counts")
	}
	if have, err := h.VirtualFunctions("mlx5_core.sf.4"); err != nil || len(have) > 0 {
		t.Errorf("of a subfunction: %v, %v", have, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "virtfn3"), nil, 0o600); err != nil { // no link
		t.Fatal(err)
	}
	if have, err := h.VirtualFunctions(physical); err == nil || len(have) != 2 {
		t.Errorf("with one that cannot be read: %v, %v", have, err)
	}
}
