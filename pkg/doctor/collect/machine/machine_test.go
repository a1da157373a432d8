package machine

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/credential"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/procs"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/install"
)

// hostReaderIn returns a reader of the tree.
func hostReaderIn(root string) *Reader {
	return &Reader{Reader: procs.NewReader(files.Roots{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), Root: root}), IsRoot: true, InstallDir: install.DefaultDir}
}

func TestModulesAndTheirOrigins(t *testing.T) {
	files := map[string]string{
		"proc/sys/kernel/osrelease":          "6.1.0\n",
		"lib/modules/6.1.0/modules.builtin":  "kernel/drivers/infiniband/core/ib_core.ko\nkernel/net/x-y.ko\n",
		"lib/modules/6.1.0/modules.dep":      "updates/dkms/ib_uverbs.ko.xz: kernel/a.ko\nkernel/drivers/infiniband/core/rdma_cm.ko: \n",
		"sys/module/ib_uverbs/initstate":     "live",
		"sys/module/rdma_cm/initstate":       "live",
		"sys/module/rdma_ucm/initstate":      "live",
		"sys/module/rdma_ucm/taint":          "OE\n",
		"sys/module/ib_core/parameters/x":    "1",
		"sys/module/mlx_compat/version":      "24.10\n",
		"proc/driver/nvidia/version":         "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570\n",
		"sys/module/nvidia/initstate":        "live",
		"etc/security/limits.conf":           "# * soft memlock 1\n* hard memlock unlimited\n* soft nofile 5\n",
		"etc/security/limits.d/90-rdma.conf": "root - memlock 64\n",
		"etc/security/limits.d/README":       "root - memlock 65\n",
	}
	c := hostReaderIn(scratch.Tree(t, files))
	modules, err := c.Modules(t.Context())
	if want := []string{"ib_core", "ib_uverbs", "mlx_compat", "nvidia", "rdma_cm", "rdma_ucm", "x_y"}; err != nil || !slices.Equal(modules, want) {
		t.Errorf("modules %v, %v", modules, err)
	}
	origins, err := c.Origins(t.Context())
	want := map[string]string{"ib_core": fact.OriginKernel, "ib_uverbs": fact.OriginPackage, "rdma_cm": fact.OriginKernel, "rdma_ucm": fact.OriginPackage}
	if err != nil || !maps.Equal(origins, want) {
		t.Errorf("origins %v, %v", origins, err)
	}
	if version, err := c.MOFED(t.Context()); err != nil || version != "24.10" {
		t.Errorf("MOFED %q, %v", version, err)
	}
	if open, err := c.NVIDIAOpen(t.Context()); err != nil || !open {
		t.Errorf("open module %t, %v", open, err)
	}
	limits, err := c.LimitsConf(t.Context())
	if want := []string{"* hard memlock unlimited", "root - memlock 64"}; err != nil || !slices.Equal(limits, want) {
		t.Errorf("limits %q, %v", limits, err)
	}
}

func TestDMABufIsAFunctionOfTheKernel(t *testing.T) {
	for text, want := range map[string]bool{
		"0000000000000000 T ib_umem_get\t[ib_core]\n0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]\n": true,
		"0000000000000000 T ib_umem_get\n": false,
	} {
		have, err := hostReaderIn(scratch.Tree(t, map[string]string{"proc/kallsyms": text})).DMABuf(t.Context())
		if err != nil || have != want {
			t.Errorf("%q: %t, %v", text, have, err)
		}
	}
	for name, files := range map[string]map[string]string{"no file": {}, "an empty file": {"proc/kallsyms": ""}} {
		if have, err := hostReaderIn(scratch.Tree(t, files)).DMABuf(t.Context()); err == nil {
			t.Errorf("%s: %t", name, have)
		}
	}
}

func TestHypervisorIsKnownOrUnknown(t *testing.T) {
	for _, c := range []struct {
		cpu, vendor string
		want, fails bool
	}{
		{"processor\t: 0\nflags\t\t: fpu sse hypervisor\n", "", true, false},
		{"processor\t: 0\nflags\t\t: fpu sse\n", "", false, false},
		{"processor\t: 0\nFeatures\t: fp asimd\n", "QEMU\n", true, false},
		{"processor\t: 0\nFeatures\t: fp asimd\n", "Amazon EC2\n", false, true},
	} {
		have, err := hostReaderIn(scratch.Tree(t, map[string]string{"proc/cpuinfo": c.cpu, "sys/class/dmi/id/sys_vendor": c.vendor})).Hypervisor(t.Context())
		if have != c.want || (err != nil) != c.fails {
			t.Errorf("%q, %q: %t, %v", c.cpu, c.vendor, have, err)
		}
	}
}

func TestLinesOfTheKernelsLog(t *testing.T) {
	const trouble = "mlx5_core 0000:3b:00.0: Detected insufficient power on the PCIe slot (27W)."
	for record, want := range map[string]string{
		"4,1,5000000,-;" + trouble + "\n SUBSYSTEM=pci\n": trouble,
		"4,1,1000000,-;" + trouble + "\n":                 "", // older
		"6,1,5000000,-;ens1: renamed from net1\n":         "",
		"6,1,5000000":        "",
		"6,1,x,-;" + trouble: "",
		"4,1,5000000,-;" + trouble + strings.Repeat("x", 10_000): (trouble + strings.Repeat("x", 10_000))[:maxLogLine],
	} {
		if have := logLine(record, 2_000_000); have != want {
			t.Errorf("%.80q: %q", record, have)
		}
	}
}

func TestCNIDirectories(t *testing.T) {
	dir := scratch.Tree(t, map[string]string{
		"opt/cni/bin/macvlan": "another's", "opt/cni/bin/bridge": "x", "etc/cni/net.d/README": "", "etc/cni/net.d/10-b.conflist": "{}", "etc/cni/net.d/00-multus.conf": "{}",
	})
	c := hostReaderIn(dir)
	if have, err := c.Primary(t.Context()); err != nil || have != "/etc/cni/net.d/00-multus.conf" {
		t.Errorf("primary %q, %v", have, err)
	}
	have, err := c.Binaries(t.Context())
	want := []fact.Binary{{Path: "/opt/cni/bin/macvlan", SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("another's")))}}
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("binaries %+v, %v", have, err)
	}
	if have, err := c.Multus(t.Context()); err != nil || have != "" {
		t.Errorf("Multus %q, %v", have, err)
	}
	empty := hostReaderIn(t.TempDir())
	for name, read := range map[string]func() (any, error){
		"primary": func() (any, error) { return empty.Primary(t.Context()) },
		"multus":  func() (any, error) { return empty.Multus(t.Context()) },
	} {
		if have, err := read(); err != nil || !reflect.ValueOf(have).IsZero() {
			t.Errorf("%s of an empty machine: %v, %v", name, have, err)
		}
	}
}

// TestCNIDirectoriesOfRailAgentsRecord: on OpenShift and k3s, flags tell rail-agent the directories
// of the runtime, and its record contains these directories.
func TestCNIDirectoriesOfRailAgentsRecord(t *testing.T) {
	dir := scratch.Tree(t, map[string]string{"bin/multus": "no program", "net.d/00-multus.conf": "{}"})
	c := hostReaderIn(dir)
	c.Root, c.InstallDir = "/", filepath.Join(dir, "install")
	plugin := filepath.Join(dir, "bin/rail-macvlan")
	for _, path := range []string{plugin, filepath.Join(dir, "net.d", credential.Dir, "whereabouts.conf")} {
		if _, err := install.Open(c.InstallDir).Put(t.Context(), install.File{Path: path, Content: []byte("ours"), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := c.Primary(t.Context()); err != nil || have != filepath.Join(dir, "net.d/00-multus.conf") {
		t.Errorf("primary %q, %v", have, err)
	}
	if have, err := c.Binaries(t.Context()); err != nil || len(have) != 1 || have[0].Path != plugin || have[0].SHA256 != have[0].Installed {
		t.Errorf("plugins %+v, %v", have, err)
	}
	if have, err := c.Multus(t.Context()); err == nil {
		t.Errorf("Multus %q, of a file that is no program", have)
	}
	c.BinDir = filepath.Join(dir, "net.d")
	if have, err := c.Multus(t.Context()); err != nil || have != "" {
		t.Errorf("Multus in the directory that the caller names: %q, %v", have, err)
	}
	c.BinDir, c.IsRoot = "", false
	if have, err := c.Multus(t.Context()); err == nil {
		t.Errorf("Multus %q, as a user who may not read the record", have)
	}
}

func TestCharDevicesOfAnUnreadableDirectory(t *testing.T) {
	dir := scratch.Tree(t, map[string]string{"dev/infiniband": "a file"})
	if have, err := hostReaderIn(dir).CharDevices(t.Context()); err == nil {
		t.Errorf("%v", have)
	}
	if have, err := hostReaderIn(t.TempDir()).CharDevices(t.Context()); err != nil || len(have) != 0 {
		t.Errorf("%v, %v", have, err)
	}
	dir = scratch.Tree(t, map[string]string{"dev/infiniband/uverbs0": ""})
	if have, err := hostReaderIn(dir).CharDevices(t.Context()); err != nil || !slices.Equal(have, []string{filepath.Join("/dev/infiniband", "uverbs0")}) {
		t.Errorf("%v, %v", have, err)
	}
}

// TestFilesOfAContainerAreNotTheNodes has a process whose mount namespace is not the node's.
func TestFilesOfAContainerAreNotTheNodes(t *testing.T) {
	for _, c := range []struct {
		name, mounts, pids string
		contained          bool
	}{
		{"on the node", "mnt:[1]", procs.InitPIDNamespace, false},
		{"in the node's PID namespace", "mnt:[2]", procs.InitPIDNamespace, true},
		{"in a container", "mnt:[1]", "pid:[2]", true},
	} {
		dir := scratch.Tree(t, map[string]string{
			"proc/self/ns/mnt@": c.mounts, "proc/1/ns/mnt@": "mnt:[1]", "proc/self/ns/pid@": c.pids,
			"proc/sys/kernel/osrelease": "0-no-such-kernel", "sys/class/infiniband_verbs/uverbs0": "", "sys/module/ib_core/x": "",
		})
		r := hostReaderIn(dir)
		r.Root = "/"
		if _, err := r.Modules(t.Context()); (err != nil) != c.contained {
			t.Errorf("modules %s: %v", c.name, err)
		}
		if _, err := os.Stat("/dev/infiniband"); err == nil {
			continue // of the machine that runs the test
		}
		if _, err := r.CharDevices(t.Context()); (err != nil) != c.contained {
			t.Errorf("char devices %s: %v", c.name, err)
		}
	}
}
