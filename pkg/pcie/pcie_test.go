package pcie_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// device makes a PCI function in a sysfs of the test's. path is below devices.
func device(t *testing.T, sys, path string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(sys, "devices", path)
	bus := filepath.Join(sys, "bus/pci/devices")
	for _, d := range []string{dir, bus} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join("../../../devices", path), filepath.Join(bus, filepath.Base(path))); err != nil {
		t.Fatal(err)
	}
}

// server makes the sysfs of a machine with two NUMA nodes. The first has a switch with two
// NICs and a GPU, a second switch behind it, and a NIC at the host bridge.
func server(t *testing.T) *pcie.Tree {
	t.Helper()
	sys := t.TempDir()
	for path, files := range map[string]map[string]string{
		"pci0000:3a/0000:3a:00.0": {"class": "0x060400"},
		"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0":                           {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "numa_node": "0"},
		"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.1":                           {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021", "numa_node": "0"},
		"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0":                           {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "0"},
		"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0": {"class": "0x120000", "vendor": "0x1002", "device": "0x74a1", "numa_node": "0"},
		"pci0000:3a/0000:3a:01.0/0000:50:00.0":                                                     {"class": "0x020000", "vendor": "0x8086", "numa_node": "0"},
		"pci0000:60/0000:60:01.0/0000:61:00.0":                                                     {"class": "0x020000", "vendor": "0x14e4", "numa_node": "0"},
		"pci0000:a0/0000:a0:01.0/0000:a1:00.0":                                                     {"class": "0x020000", "vendor": "0x15b3", "numa_node": "1"},
		"pci0000:a2/0000:a2:00.0":                                                                  {"class": "0x028000", "numa_node": "1"},
		// Behind a device that is a host bridge itself (VMD), in a domain above ffff.
		"pci0000:a0/0000:a0:05.5/pci10000:e0/10000:e0:02.0/10000:e1:00.0": {"class": "0x020000", "vendor": "0x15b3", "numa_node": "1"},
		// A machine that says nothing of NUMA, and the display of a server's BMC.
		"platform/soc/pci000c:00/000c:00:00.0/000c:01:00.0": {"class": "0x020000", "numa_node": "-1"},
		"pci0000:00/0000:00:1c.0/0000:02:00.0":              {"class": "0x030000", "vendor": "0x1a03"},
	} {
		device(t, sys, path, files)
	}
	if err := os.Symlink("../../../../../../../bus/pci/drivers/mlx5_core", filepath.Join(sys, "bus/pci/devices/0000:3d:00.0/driver")); err != nil {
		t.Fatal(err)
	}
	tree, err := pcie.Read(sys)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestDistanceInTheWordsOfNvidiaSMI(t *testing.T) {
	tree := server(t)
	for _, c := range []struct {
		what, a, b string
		want       pcie.Distance
	}{
		{"two functions of one NIC", "0000:3d:00.0", "0000:3d:00.1", pcie.PIX},
		{"two netdevs of one function at the host bridge", "0000:a2:00.0", "0000:a2:00.0", pcie.PIX},
		{"two ports of one switch", "0000:3d:00.0", "0000:3e:00.0", pcie.PIX},
		{"a switch behind the switch", "0000:3d:00.0", "0000:41:00.0", pcie.PXB},
		{"two root ports", "0000:3d:00.0", "0000:50:00.0", pcie.PHB},
		{"two host bridges of a NUMA node", "0000:3d:00.0", "0000:61:00.0", pcie.NODE},
		{"two NUMA nodes", "0000:3d:00.0", "0000:a1:00.0", pcie.SYS},
		{"behind the same host bridge, through VMD", "0000:a1:00.0", "10000:e1:00.0", pcie.PHB},
		{"a NUMA node that is not known", "0000:3d:00.0", "000c:01:00.0", pcie.SYS},
		{"no such device", "0000:3d:00.0", "0000:99:00.0", pcie.SYS},
	} {
		if got, back := tree.Distance(c.a, c.b), tree.Distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%s: %s, and back %s, want %s", c.what, got, back, c.want)
		}
	}
}

func TestNICsAndGPUsAreKnownByTheirClass(t *testing.T) {
	tree := server(t)
	addresses := func(list []*pcie.Device) (all []string) {
		for _, d := range list {
			all = append(all, d.Address)
		}
		return all
	}
	if got, want := len(addresses(tree.NICs())), 8; got != want {
		t.Errorf("%d NICs, want %d: %v", got, want, addresses(tree.NICs()))
	}
	if got := addresses(tree.GPUs()); len(got) != 2 || got[0] != "0000:3e:00.0" || got[1] != "0000:41:00.0" {
		t.Errorf("GPUs %v", got)
	}
	d := tree.ByAddress("0000:3d:00.0")
	if d == nil || d.Vendor != 0x15b3 || d.Device != 0x1021 || d.Driver != "mlx5_core" || d.NUMA != 0 || len(d.Path) != 4 {
		t.Errorf("%+v", d)
	}
	if d := tree.ByAddress("000c:01:00.0"); d.NUMA != -1 || d.Driver != "" || d.Path[0] != "pci000c:00" {
		t.Errorf("%+v", d)
	}
}

// Vendor and class decide. Each line has the source of its class.
func TestGPUsOfEachVendor(t *testing.T) {
	for _, c := range []struct {
		name, class, vendor, device string
		want                        bool
	}{
		// lspci -nn of DGX H100: "3D controller [0302]: NVIDIA Corporation ... [10de:2330]".
		{"NVIDIA H100", "0x030200", "0x10de", "0x2330", true},
		// AMD Instinct's documentation (system validation) shows lspci: "Processing accelerators:
		// Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]"; the ID is of
		// its table of "lspci -d 1002:74a1".
		{"AMD Instinct MI300X", "0x120000", "0x1002", "0x74a1", true},
		// Linux's amdgpu binds to every function of 1002 with this class (pciidlist,
		// PCI_CLASS_DISPLAY_OTHER); lspci -vmmkn of an MI100 has Class 0380, Device 738c.
		{"AMD Instinct MI100", "0x038000", "0x1002", "0x738c", true},
		// habanalabs_drv.c, PCI_IDS_GAUDI_SEC; lspci: "Processing accelerators: Habana Labs Ltd.
		// HL-2000 AI Training Accelerator [Gaudi secured]".
		{"Gaudi", "0x120000", "0x1da3", "0x1010", true},
		// habanalabs_drv.c, PCI_IDS_GAUDI2; lspci -vmmkn has Class 1200, Device 1020.
		{"Gaudi 2", "0x120000", "0x1da3", "0x1020", true},

		// Devices that are no GPUs. pci.ids has the names, and include/linux/pci_ids.h of Linux the classes.
		{"display of a BMC (ASPEED)", "0x030000", "0x1a03", "0x2000", false},
		{"audio function of a GPU of NVIDIA", "0x040300", "0x10de", "0x22ba", false},
		{"NVSwitch of NVIDIA, a bridge", "0x068000", "0x10de", "0x22a3", false},
		{"accelerator of another vendor", "0x120000", "0x8086", "0x4940", false},
		{"signal processing of AMD's CPUs, of vendor 1022", "0x118000", "0x1022", "0x1502", false},
		{"USB controller beside an AMD GPU", "0x0c0330", "0x1002", "0x7316", false},
	} {
		sys := t.TempDir()
		device(t, sys, "pci0000:00/0000:00:01.0", map[string]string{"class": c.class, "vendor": c.vendor, "device": c.device})
		tree, err := pcie.Read(sys)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(tree.GPUs()) == 1; got != c.want {
			t.Errorf("%s (class %s, vendor %s): a GPU %v, want %v", c.name, c.class, c.vendor, got, c.want)
		}
	}
}

func TestMachineWithoutPCIHasNoDevices(t *testing.T) {
	tree, err := pcie.Read(t.TempDir())
	if err != nil || len(tree.NICs()) != 0 || tree.ByAddress("0000:3d:00.0") != nil {
		t.Errorf("%+v, %v", tree, err)
	}
}
