package pcietest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// Function is a PCI function of a machine, with the bridges above it.
type Function struct {
	Path  string // "pci0000:00/0000:00:01.0/0000:01:00.0"
	Class uint32
	NUMA  int
	Files map[string]string // further ones, or others, of its directory in sysfs
}

// Classes of PCI functions.
const (
	ClassGPU    = 0x030200
	ClassRoCE   = 0x020000
	ClassIB     = 0x020700
	classBridge = 0x060400
)

// Machine makes the sysfs and procfs of a machine with these functions, and with the bridges that their paths name. It
// returns the PCI tree, and the directory with sys and proc, which is removed after the test.
func Machine(t testing.TB, functions ...Function) (tree *pcie.Tree, root string) {
	t.Helper()
	root = t.TempDir()
	known := map[string]bool{}
	for _, f := range functions {
		parts := strings.Split(f.Path, "/")
		for i := 2; i < len(parts); i++ {
			bridge := strings.Join(parts[:i], "/")
			if !known[bridge] {
				known[bridge] = true
				writeFunction(t, root, Function{Path: bridge, Class: classBridge, NUMA: f.NUMA})
			}
		}
		writeFunction(t, root, f)
	}
	Write(t, root, "proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nprocessor\t: 1\nvendor_id\t: other\n")
	for _, numa := range []int{0, 1} {
		Write(t, root, fmt.Sprintf("sys/devices/system/node/node%d/cpumap", numa), "00000000,ffffffff\n")
	}
	tree, err := pcie.Read(filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	return tree, root
}

func writeFunction(t testing.TB, root string, f Function) {
	t.Helper()
	dir := "sys/devices/" + f.Path
	vendor := "0x15b3"
	if f.Class == ClassGPU {
		vendor = "0x10de"
	}
	files := map[string]string{
		"class": fmt.Sprintf("0x%06x", f.Class), "vendor": vendor, "device": "0x1021", "numa_node": fmt.Sprint(f.NUMA),
		"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
	}
	for name, content := range f.Files {
		files[name] = content
	}
	for name, content := range files {
		Write(t, root, filepath.Join(dir, name), content+"\n")
	}
	link := filepath.Join(root, "sys/bus/pci/devices", filepath.Base(f.Path))
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/"+f.Path, link); err != nil {
		t.Fatal(err)
	}
}

// Write writes a file of the machine, and makes its directory.
func Write(t testing.TB, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
