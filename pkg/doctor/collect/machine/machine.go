package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/procs"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/host"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

// Reader reads the facts of a machine, and of the CNI directories on it.
type Reader struct {
	*procs.Reader
	IsRoot bool // this process is root

	BinDir, ConfDir string // the runtime's CNI directories; those in rail-agent's record if empty
	InstallDir      string // of rail-agent's record of files
}

// hypervisors are prefixes of the DMI vendor's name on virtual machines.
var hypervisors = []string{"QEMU", "VMware", "Xen", "innotek", "Parallels", "Red Hat KVM", "Google Compute"}

// Hypervisor reports whether the machine is virtual. An x86 CPU shows it in a flag (CPUID leaf 1,
// ECX bit 31). On other CPUs only the texts of the firmware may show it.
func (c *Reader) Hypervisor(context.Context) (bool, error) {
	text, err := files.ReadUpTo(filepath.Join(c.Proc, "cpuinfo"), 64<<20)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(text) {
		if key, flags, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor"), nil
		}
	}
	vendor, err := files.ReadText(filepath.Join(c.Sys, "class/dmi/id/sys_vendor"))
	if err == nil && slices.ContainsFunc(hypervisors, func(h string) bool { return strings.HasPrefix(vendor, h) }) {
		return true, nil
	}
	return false, fmt.Errorf("it is unknown whether the machine is virtual: neither its CPU (%s) nor its firmware shows it", runtime.GOARCH)
}

// RDMAMode returns the RDMA mode of the running kernel. It returns "" if the kernel has no RDMA
// core.
func RDMAMode(context.Context) (string, error) {
	mode, err := bootmode.RunningMode()
	if errors.Is(err, rdma.ErrNoRDMA) {
		return "", nil
	}
	return string(mode), err
}

// builtIn is the name of the file, in the kernel's directory, that lists the built-in modules.
const builtIn = "modules.builtin"

// kernelList returns the text of a file in the running kernel's directory in /lib/modules. It
// returns "" if the file does not exist.
func (c *Reader) kernelList(name string) (string, error) {
	release, err := files.ReadText(filepath.Join(c.Proc, "sys/kernel/osrelease"))
	if err != nil {
		return "", err
	}
	text, err := files.ReadUpTo(c.HostPath(filepath.Join("lib/modules", filepath.Base(release), name)), 16<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return text, err
}

// moduleOf returns the name of the module whose file has this path.
func moduleOf(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// Modules returns the names of the modules that are in sysfs or built into the kernel. Some
// built-in modules have no directory in sysfs.
func (c *Reader) Modules(context.Context) ([]string, error) {
	dir := filepath.Join(c.Sys, "module")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	list, err := c.kernelList(builtIn)
	if err != nil {
		return nil, err
	}
	if list == "" && c.Contained() {
		return nil, fmt.Errorf("the modules that the kernel has built in are not known: %w", procs.ErrContained)
	}
	for path := range strings.Lines(list) {
		names = append(names, moduleOf(strings.TrimSpace(path)))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// MOFED returns the version of the vendor's drivers. They are in use if their module mlx_compat is
// loaded. If it is not loaded, mofed returns "".
func (c *Reader) MOFED(context.Context) (string, error) {
	exists, err := files.Exists(filepath.Join(c.Sys, "module/mlx_compat"))
	if err != nil || !exists {
		return "", err
	}
	for _, module := range []string{"mlx_compat", "mlx5_core", "ib_core"} {
		if version, err := files.ReadText(filepath.Join(c.Sys, "module", module, "version")); err == nil && version != "" {
			return version, nil
		}
	}
	return "", errors.New("the vendor's module mlx_compat is loaded, but no module has a version in sysfs")
}

// NVIDIAOpen reports whether the module nvidia is the open one. It looks at the name that the
// module reports: "NVIDIA UNIX Open Kernel Module for x86_64".
func (c *Reader) NVIDIAOpen(context.Context) (bool, error) {
	exists, err := files.Exists(filepath.Join(c.Sys, "module/nvidia"))
	if err != nil || !exists {
		return false, err
	}
	text, err := files.ReadText(filepath.Join(c.Proc, "driver/nvidia/version"))
	return strings.Contains(text, "Open Kernel Module"), err
}

// rdmaModules are prefixes of names of modules. For each loaded module with one of these prefixes,
// the origin is a fact.
var rdmaModules = []string{"ib_", "rdma_", "mlx4_", "mlx5_", "iw_cm"}

// Origins returns where each loaded RDMA module comes from. The kernel marks a module that was not
// built with the kernel ("O", out of tree), even if a container has loaded the module. The file
// modules.dep shows whether a package has put a file of its own in place of the kernel's file.
func (c *Reader) Origins(context.Context) (map[string]string, error) {
	names, err := files.Names(filepath.Join(c.Sys, "module"))
	if err != nil {
		return nil, err
	}
	list, err := c.kernelList("modules.dep")
	if err != nil {
		return nil, err
	}
	replaced := map[string]bool{}
	for line := range strings.Lines(list) {
		if path, _, ok := strings.Cut(line, ":"); ok {
			replaced[moduleOf(path)] = !strings.HasPrefix(path, "kernel/")
		}
	}
	found := map[string]string{}
	for _, name := range names {
		if !slices.ContainsFunc(rdmaModules, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		found[name] = fact.OriginKernel
		if loaded, err := files.Exists(filepath.Join(c.Sys, "module", name, "initstate")); err != nil || !loaded {
			continue // the module is built in
		}
		taint, err := files.ReadText(filepath.Join(c.Sys, "module", name, "taint"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if strings.Contains(taint, "O") || replaced[name] {
			found[name] = fact.OriginPackage
		}
	}
	return found, nil
}

// dmaBufSymbol is the kernel's function that drivers call to register the memory of a dma-buf
// (Linux 5.12).
const dmaBufSymbol = "ib_umem_dmabuf_get"

// DMABuf reports whether the kernel has the function dmaBufSymbol. An ordinary user can read the
// names of functions, but not their addresses.
func (c *Reader) DMABuf(context.Context) (bool, error) {
	f, err := os.Open(filepath.Join(c.Proc, "kallsyms"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	any := false
	for lines.Scan() {
		any = true
		if strings.Contains(lines.Text(), " "+dmaBufSymbol) {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	if !any {
		return false, errors.New("the list of the kernel's symbols is empty")
	}
	return false, nil
}

// CharDevices returns the paths below /dev/infiniband. Inside a container the directory may be
// missing although the node has RDMA devices, because a container has its own /dev.
func (c *Reader) CharDevices(ctx context.Context) ([]string, error) {
	names, err := files.Names(c.HostPath("dev/infiniband"))
	if err == nil && len(names) == 0 && c.Contained() {
		if uverbs, err := c.Uverbs(ctx); err != nil || len(uverbs) > 0 {
			return nil, errors.Join(err, procs.ErrContained)
		}
	}
	for i, name := range names {
		names[i] = "/dev/infiniband/" + name
	}
	return names, err
}

// Uverbs returns the names of the kernel's verbs devices.
func (c *Reader) Uverbs(context.Context) ([]string, error) {
	if _, err := os.Stat(filepath.Join(c.Sys, "class")); err != nil {
		return nil, err // the directory is not a sysfs
	}
	names, err := files.Names(filepath.Join(c.Sys, "class/infiniband_verbs"))
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "uverbs") }), err
}

// LimitsConf returns the lines about memlock in the configuration of pam_limits(8).
func (c *Reader) LimitsConf(context.Context) ([]string, error) {
	paths := []string{c.HostPath("etc/security/limits.conf")}
	names, err := files.Names(c.HostPath("etc/security/limits.d"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".conf") {
			paths = append(paths, filepath.Join(c.HostPath("etc/security/limits.d"), name))
		}
	}
	var found []string
	for _, file := range paths {
		text, err := files.ReadText(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, files.LinesWith(text, 100, func(line string) bool {
			return !strings.HasPrefix(line, "#") && slices.Contains(strings.Fields(line), "memlock")
		})...)
	}
	return found, nil
}

// Swaps returns the active swap areas.
func (c *Reader) Swaps(context.Context) ([]string, error) {
	text, err := files.ReadText(filepath.Join(c.Proc, "swaps"))
	var found []string
	for _, line := range files.LinesWith(text, 100, func(line string) bool { return !strings.HasPrefix(line, "Filename") }) {
		found = append(found, strings.Fields(line)[0])
	}
	return found, err
}

// Sysctls returns the settings that rules read. Settings that the kernel does not have are left
// out.
func (c *Reader) Sysctls(context.Context) (map[string]string, error) {
	found := map[string]string{}
	for _, name := range host.WantedSysctls() {
		value, err := files.ReadText(filepath.Join(c.Proc, "sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = value
	}
	return found, nil
}
