package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// function is a PCI function of a fixture, with the bridges above it.
type function struct {
	path  string // "pci0000:00/0000:00:01.0/0000:01:00.0"
	class uint32
	numa  int
	files map[string]string
}

const (
	classBridge = 0x060400
	classGPU    = 0x030200
	classRoCE   = 0x020000
	classIB     = 0x020700
)

// machineOf makes the sysfs and procfs of a machine with these functions, and with the
// bridges that their paths name.
func machineOf(t testing.TB, functions ...function) Machine {
	t.Helper()
	root := t.TempDir()
	known := map[string]bool{}
	for _, f := range functions {
		parts := strings.Split(f.path, "/")
		for i := 2; i < len(parts); i++ {
			bridge := strings.Join(parts[:i], "/")
			if !known[bridge] {
				known[bridge] = true
				writeFunction(t, root, function{path: bridge, class: classBridge, numa: f.numa})
			}
		}
		writeFunction(t, root, f)
	}
	write(t, root, "proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nprocessor\t: 1\nvendor_id\t: other\n")
	for _, numa := range []int{0, 1} {
		write(t, root, fmt.Sprintf("sys/devices/system/node/node%d/cpumap", numa), "00000000,ffffffff\n")
	}
	tree, err := pcie.Read(filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	return Machine{Tree: tree, Root: root}
}

func writeFunction(t testing.TB, root string, f function) {
	t.Helper()
	dir := "sys/devices/" + f.path
	vendor := "0x15b3"
	if f.class == classGPU {
		vendor = "0x10de"
	}
	files := map[string]string{
		"class": fmt.Sprintf("0x%06x", f.class), "vendor": vendor, "device": "0x1021", "numa_node": fmt.Sprint(f.numa),
		"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
	}
	for name, content := range f.files {
		files[name] = content
	}
	for name, content := range files {
		write(t, root, filepath.Join(dir, name), content+"\n")
	}
	at := filepath.Join(root, "sys/bus/pci/devices", filepath.Base(f.path))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/"+f.path, at); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// railsAt returns the rails of a pod that has the NICs at these addresses, as rails 0, 1 ….
func railsAt(m Machine, layer string, addresses ...string) *Rails {
	list := &inventory.NICList{Tree: m.Tree, GPUs: m.Tree.GPUs()}
	r := &Rails{Schema: Schema, Pod: PodRef{UID: "0d6c", Namespace: "default", Name: "web-0", Node: "node-1"}}
	for i, address := range addresses {
		l := Rail{
			Rail: &i, IfName: fmt.Sprintf("net%d", i+1), RDMA: fmt.Sprintf("mlx5_%d", i), Port: 1, LinkLayer: layer, State: "ACTIVE",
			SpeedMbps: 400000, MTU: 9000, ActiveMTU: 4096, MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), SysImageGUID: fmt.Sprintf("5054:00ff:fe12:34%02x", i),
			CharDevices: []string{fmt.Sprintf("/dev/infiniband/issm%d", i), fmt.Sprintf("/dev/infiniband/umad%d", i), fmt.Sprintf("/dev/infiniband/uverbs%d", i)},
		}
		l.fill(list, noLoan, nil, address)
		r.Rails = append(r.Rails, l)
	}
	return r
}

// noLoan is a record that contains nothing about a NIC.
var noLoan = &ledger.Record{}
