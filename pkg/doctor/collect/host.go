package collect

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

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

// ofHost reads the facts about the machine.
func (c *collector) ofHost(ctx context.Context, h *doctor.Host) {
	proc := func(name string) string { return filepath.Join(c.Proc, name) }
	file := func(to *doctor.Fact[string], name string) {
		take(ctx, c, to, proc(name), localTime, func(context.Context) (string, error) { return readText(proc(name)) })
	}
	file(&h.Kernel, "sys/kernel/osrelease")
	file(&h.CmdLine, "cmdline")
	take(ctx, c, &h.Hypervisor, proc("cpuinfo"), localTime, c.hypervisor)
	take(ctx, c, &h.RDMAMode, "RDMA netlink", localTime, rdmaMode)
	take(ctx, c, &h.Modules, filepath.Join(c.Sys, "module"), localTime, c.modules)
	take(ctx, c, &h.MOFED, filepath.Join(c.Sys, "module/mlx_compat"), localTime, c.mofed)
	if c.Sample >= 0 && (c.nvidia.Value || !c.nvidia.OK()) { // reading it needs 0.1 s of a CPU
		take(ctx, c, &h.DMABuf, proc("kallsyms"), localTime, c.dmaBuf)
	}
	take(ctx, c, &h.NVIDIAOpen, proc("driver/nvidia/version"), localTime, c.nvidiaOpen)
	take(ctx, c, &h.Origins, filepath.Join(c.Sys, "module/*/taint")+" and modules.dep", localTime, c.origins)
	take(ctx, c, &h.CharDevices, c.hostPath("dev/infiniband"), localTime, c.charDevices)
	take(ctx, c, &h.Uverbs, filepath.Join(c.Sys, "class/infiniband_verbs"), localTime, c.uverbs)
	take(ctx, c, &h.Memlock, proc("*/limits"), localTime, c.daemonLimits)
	take(ctx, c, &h.LimitsConf, c.hostPath("etc/security/limits.conf, limits.d"), localTime, c.limitsConf)
	take(ctx, c, &h.Swaps, proc("swaps"), localTime, c.swaps)
	take(ctx, c, &h.Sysctls, proc("sys"), localTime, c.sysctls)
	take(ctx, c, &h.KernelLog, c.hostPath("dev/kmsg"), localTime, c.kernelLog)
}

// hypervisors are prefixes of the DMI vendor's name on virtual machines.
var hypervisors = []string{"QEMU", "VMware", "Xen", "innotek", "Parallels", "Red Hat KVM", "Google Compute"}

// hypervisor reports whether the machine is virtual. An x86 CPU shows it in a flag (CPUID leaf 1,
// ECX bit 31). On other CPUs only the texts of the firmware may show it.
func (c *collector) hypervisor(context.Context) (bool, error) {
	text, err := readUpTo(filepath.Join(c.Proc, "cpuinfo"), 64<<20)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(text) {
		if key, flags, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor"), nil
		}
	}
	vendor, err := readText(filepath.Join(c.Sys, "class/dmi/id/sys_vendor"))
	if err == nil && slices.ContainsFunc(hypervisors, func(h string) bool { return strings.HasPrefix(vendor, h) }) {
		return true, nil
	}
	return false, fmt.Errorf("it is unknown whether the machine is virtual: neither its CPU (%s) nor its firmware shows it", runtime.GOARCH)
}

// rdmaMode returns the RDMA mode of the running kernel. It returns "" if the kernel has no RDMA
// core.
func rdmaMode(context.Context) (string, error) {
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
func (c *collector) kernelList(name string) (string, error) {
	release, err := readText(filepath.Join(c.Proc, "sys/kernel/osrelease"))
	if err != nil {
		return "", err
	}
	text, err := readUpTo(c.hostPath(filepath.Join("lib/modules", filepath.Base(release), name)), 16<<20)
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

// modules returns the names of the modules that are in sysfs or built into the kernel. Some
// built-in modules have no directory in sysfs.
func (c *collector) modules(context.Context) ([]string, error) {
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
	if list == "" && c.contained() {
		return nil, fmt.Errorf("the modules that the kernel has built in are not known: %w", errContained)
	}
	for path := range strings.Lines(list) {
		names = append(names, moduleOf(strings.TrimSpace(path)))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// mofed returns the version of the vendor's drivers. They are in use if their module mlx_compat is
// loaded. If it is not loaded, mofed returns "".
func (c *collector) mofed(context.Context) (string, error) {
	there, err := exists(filepath.Join(c.Sys, "module/mlx_compat"))
	if err != nil || !there {
		return "", err
	}
	for _, module := range []string{"mlx_compat", "mlx5_core", "ib_core"} {
		if version, err := readText(filepath.Join(c.Sys, "module", module, "version")); err == nil && version != "" {
			return version, nil
		}
	}
	return "", errors.New("the vendor's module mlx_compat is loaded, but no module has a version in sysfs")
}

// nvidiaOpen reports whether the module nvidia is the open one. It looks at the name that the
// module reports: "NVIDIA UNIX Open Kernel Module for x86_64".
func (c *collector) nvidiaOpen(context.Context) (bool, error) {
	there, err := exists(filepath.Join(c.Sys, "module/nvidia"))
	if err != nil || !there {
		return false, err
	}
	text, err := readText(filepath.Join(c.Proc, "driver/nvidia/version"))
	return strings.Contains(text, "Open Kernel Module"), err
}

// rdmaModules are prefixes of names of modules. For each loaded module with one of these prefixes,
// the origin is a fact.
var rdmaModules = []string{"ib_", "rdma_", "mlx4_", "mlx5_", "iw_cm"}

// origins returns where each loaded RDMA module comes from. The kernel marks a module that was not
// built with the kernel ("O", out of tree), even if a container has loaded the module. The file
// modules.dep shows whether a package has put a file of its own in place of the kernel's file.
func (c *collector) origins(context.Context) (map[string]string, error) {
	names, err := namesIn(filepath.Join(c.Sys, "module"))
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
		found[name] = doctor.OriginKernel
		if loaded, err := exists(filepath.Join(c.Sys, "module", name, "initstate")); err != nil || !loaded {
			continue // the module is built in
		}
		taint, err := readText(filepath.Join(c.Sys, "module", name, "taint"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if strings.Contains(taint, "O") || replaced[name] {
			found[name] = doctor.OriginPackage
		}
	}
	return found, nil
}

// dmaBufSymbol is the kernel's function that drivers call to register the memory of a dma-buf
// (Linux 5.12).
const dmaBufSymbol = "ib_umem_dmabuf_get"

// dmaBuf reports whether the kernel has the function dmaBufSymbol. An ordinary user can read the
// names of functions, but not their addresses.
func (c *collector) dmaBuf(context.Context) (bool, error) {
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

// charDevices returns the paths below /dev/infiniband. Inside a container the directory may be
// missing although the node has RDMA devices, because a container has its own /dev.
func (c *collector) charDevices(ctx context.Context) ([]string, error) {
	names, err := namesIn(c.hostPath("dev/infiniband"))
	if err == nil && len(names) == 0 && c.contained() {
		if uverbs, err := c.uverbs(ctx); err != nil || len(uverbs) > 0 {
			return nil, errors.Join(err, errContained)
		}
	}
	for i, name := range names {
		names[i] = "/dev/infiniband/" + name
	}
	return names, err
}

// uverbs returns the names of the kernel's verbs devices.
func (c *collector) uverbs(context.Context) ([]string, error) {
	if _, err := os.Stat(filepath.Join(c.Sys, "class")); err != nil {
		return nil, err // the directory is not a sysfs
	}
	names, err := namesIn(filepath.Join(c.Sys, "class/infiniband_verbs"))
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "uverbs") }), err
}

// limitsConf returns the lines about memlock in the configuration of pam_limits(8).
func (c *collector) limitsConf(context.Context) ([]string, error) {
	files := []string{c.hostPath("etc/security/limits.conf")}
	names, err := namesIn(c.hostPath("etc/security/limits.d"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".conf") {
			files = append(files, filepath.Join(c.hostPath("etc/security/limits.d"), name))
		}
	}
	var found []string
	for _, file := range files {
		text, err := readText(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, linesWith(text, 100, func(line string) bool {
			return !strings.HasPrefix(line, "#") && slices.Contains(strings.Fields(line), "memlock")
		})...)
	}
	return found, nil
}

// swaps returns the active swap areas.
func (c *collector) swaps(context.Context) ([]string, error) {
	text, err := readText(filepath.Join(c.Proc, "swaps"))
	var found []string
	for _, line := range linesWith(text, 100, func(line string) bool { return !strings.HasPrefix(line, "Filename") }) {
		found = append(found, strings.Fields(line)[0])
	}
	return found, err
}

// sysctls returns the settings that rules read. Settings that the kernel does not have are left
// out.
func (c *collector) sysctls(context.Context) (map[string]string, error) {
	found := map[string]string{}
	for _, name := range doctor.WantedSysctls() {
		value, err := readText(filepath.Join(c.Proc, "sys", name))
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

// monotonic returns the present time of the kernel log's clock, in microseconds.
func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano() / 1000, err
}
