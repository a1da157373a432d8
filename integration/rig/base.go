package rig

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// kernelModules are loaded in this order, each after those that it needs. A
// kind of link that is missing here does not exist in the guest.
var kernelModules = []string{
	"ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm", "ib_ipoib",
	"veth", "bridge", "macvlan", "macvtap", "ipvlan", "ipvtap", "8021q", "bonding", "team", "vrf", "dummy", "ifb", "sch_netem",
}

// nicModules are the drivers of the NICs of series without the fake one.
var nicModules = []string{"e1000e"}

// functionModules are the drivers of the NIC with virtual functions, and of these. Machines with
// the fake NICs load them on demand, and two userspace drivers with them.
var functionModules = []string{"igb", "igbvf"}

// deviceModules are loaded on demand, for the options of [Machine].
var deviceModules = []string{"virtio_pci", "virtio_blk", "ext4", "virtio_net", "overlay"}

// moduleParameters keep these modules from making links when they are loaded.
var moduleParameters = map[string]string{"bonding.ko": "max_bonds=0", "dummy.ko": "numdummies=0", "ifb.ko": "numifbs=0"}

// system is what the file system of every run is made of.
type system struct {
	kernel
	guest  string            // the first process
	module string            // the NICs' driver, "" for NICs of QEMU
	names  map[string]string // programs and their files: source → name in the guest
	// softRoCE is the module that replaces the kernel's, of machines with the NICs'
	// driver. If it cannot be built, noSoftRoCE is the reason.
	softRoCE   string
	noSoftRoCE error
}

// base makes the file system of every run: an init, the modules, and enough of
// a userland for tests that call ip(8) and sh(1).
func (b *builder) base(ctx context.Context, k kernel, module string) (string, error) {
	s, err := b.collect(ctx, k, module)
	if err != nil {
		return "", err
	}
	// The code that makes it is an input as well.
	inputs := append([]string{s.guest}, slices.Sorted(maps.Keys(s.names))...)
	for _, name := range []string{"base.go", "userland.go", "cpio.go", "softroce.go", "udev.go", "fabric.go"} {
		inputs = append(inputs, b.source(name))
	}
	for _, file := range []string{s.module, s.softRoCE} {
		if file != "" {
			inputs = append(inputs, file)
		}
	}
	words := []string{k.version}
	if s.noSoftRoCE != nil {
		words = append(words, s.noSoftRoCE.Error())
	}
	hash, err := hashOf(inputs, words...)
	if err != nil {
		return "", err
	}
	made := filepath.Join(b.cache, "base-"+b.linux+"-"+hash+".cpio")
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	fmt.Fprintf(b.log, "rig: making the file system (its contents are new) …\n")
	defer os.Remove(made + ".new") // if it is incomplete
	if err := b.pack(ctx, s, made+".new"); err != nil {
		return "", err
	}
	if err := b.forget("base-" + b.linux + "-*.cpio"); err != nil {
		return "", err
	}
	return made, os.Rename(made+".new", made)
}

// collect builds or finds what the file system is made of. Soft-RoCE, udev and the programs of a
// fabric may be missing: only some tests need them, and fail then.
func (b *builder) collect(ctx context.Context, k kernel, module string) (*system, error) {
	s := &system{kernel: k, module: module, guest: filepath.Join(b.cache, "guest-"+b.arch.name), names: map[string]string{}}
	if err := b.buildGuest(ctx, s.guest); err != nil {
		return nil, err
	}
	root, err := b.userland(ctx)
	if err != nil {
		return nil, err
	}
	for _, tool := range append([]string{"busybox"}, tools...) {
		if err := addProgram(ctx, s.names, root, tool); err != nil {
			return nil, err
		}
	}
	if b.nics != fakeNICs {
		return s, nil
	}
	rxe, err := b.softRoCE(ctx, k)
	if err == nil {
		err = addVerbs(ctx, s.names)
	}
	if s.softRoCE = rxe; err != nil {
		s.softRoCE, s.noSoftRoCE = "", err
		fmt.Fprintf(b.log, "rig: there is no Soft-RoCE, so what needs it is left out: %v\n", err)
	}
	udev, err := b.udevFiles(ctx)
	if err != nil {
		fmt.Fprintf(b.log, "rig: there is no udev, so what needs it is left out: %v\n", err)
	}
	maps.Copy(s.names, udev)
	fabric, err := b.fabricFiles(ctx)
	if err != nil {
		fmt.Fprintf(b.log, "rig: there is no OpenSM, so what needs it is left out: %v\n", err)
	}
	maps.Copy(s.names, fabric)
	return s, nil
}

// pack writes the file system to path.
func (b *builder) pack(ctx context.Context, s *system, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.skeleton()
	a.file("/init", s.guest)
	for source, name := range s.names {
		a.file(name, source)
	}
	if err := a.applets(ctx); err != nil {
		return err
	}
	added := map[string]bool{}
	load := kernelModules
	if b.nics != fakeNICs {
		load = append(slices.Clone(load), nicModules...)
	}
	if b.nics != fakeNICs && !b.arch.foreign() {
		load = append(load, functionModules...)
	}
	if err := a.modules(ctx, s.kernel, wire.LoadOrder, added, load...); err != nil {
		return err
	}
	if err := a.modules(ctx, s.kernel, wire.Devices, added, deviceModules...); err != nil {
		return err
	}
	if s.module != "" {
		a.file(wire.NICModule, s.module)
		if err := a.modules(ctx, s.kernel, wire.Functions, added, append(slices.Clone(functionModules), "vfio_pci", "uio_pci_generic")...); err != nil {
			return err
		}
	}
	switch {
	case b.nics != fakeNICs:
		err = a.modules(ctx, s.kernel, wire.SoftRoCE, added, s.stockSoftRoCE()...)
	case s.noSoftRoCE == nil:
		a.file(wire.Modules+"/rdma_rxe.ko", s.softRoCE)                                   // replaces the kernel's
		err = a.modules(ctx, s.kernel, wire.SoftRoCE, added, "crc32_generic", "rdma_rxe") // it requests the crypto API by name
	default:
		a.bytes(wire.NoSoftRoCE, []byte(s.noSoftRoCE.Error()), 0o644)
	}
	if err != nil {
		return err
	}
	return a.close()
}

// stockSoftRoCE returns the modules of the kernel's own Soft-RoCE, whose devices cannot
// move. Older ones request the CRC of the crypto API by name.
func (k kernel) stockSoftRoCE() []string {
	names := []string{"rdma_rxe"}
	if found, _ := filepath.Glob(filepath.Join(k.dir, "lib/modules", k.version, "kernel/crypto/crc32_generic.ko*")); len(found) > 0 {
		names = append([]string{"crc32_generic"}, names...)
	}
	return names
}

// source returns the path of a file of this package.
func (b *builder) source(name string) string {
	return filepath.Join(b.root, "integration", "rig", name)
}

func (b *builder) buildGuest(ctx context.Context, output string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", output, "./integration/rig/guest")
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOARCH="+b.arch.name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// skeleton makes the files that programs expect before anything is mounted.
func (a *archive) skeleton() {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/root", "/var/lib/cni", "/usr/bin", "/usr/sbin"} {
		a.dir(dir)
	}
	a.symlink("/sbin", "bin")
	a.symlink("/var/run", "/run")
	// The kernel opens it for the first process before there is a devtmpfs.
	a.device("/dev/console", 5, 1)
	a.bytes("/etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644)
	a.bytes("/etc/group", []byte("root:x:0:\n"), 0o644)
	a.bytes("/etc/hosts", []byte("127.0.0.1 localhost rig\n::1 localhost\n"), 0o644)
}

// applets adds the commands of busybox that are not there already.
func (a *archive) applets(ctx context.Context) error {
	out, err := run(ctx, "", "busybox", "--list") // of this machine, where the guest's may not run
	if err != nil {
		return err
	}
	a.symlink("/bin/sh", "dash")
	for _, name := range strings.Fields(string(out)) {
		a.symlink("/bin/"+name, "busybox")
	}
	return nil
}

// modules adds these modules of the kernel, uncompressed, with those that they
// need and that are not added yet, and the order in which to load them.
func (a *archive) modules(ctx context.Context, k kernel, orderFile string, added map[string]bool, names ...string) error {
	var order []string
	for _, m := range names {
		out, err := run(ctx, "", "modprobe", "-C", os.DevNull, "-d", k.dir, "-S", k.version, "--show-depends", m)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(out), "\n") {
			path, isModule := strings.CutPrefix(strings.TrimSpace(line), "insmod ")
			if path = strings.TrimSpace(path); !isModule || added[path] {
				continue
			}
			added[path] = true
			object, err := readModule(ctx, path)
			if err != nil {
				return err
			}
			name := strings.TrimSuffix(filepath.Base(path), ".xz")
			a.bytes(filepath.Join(wire.Modules, name), object, 0o644)
			order = append(order, strings.TrimSpace(name+" "+moduleParameters[name]))
		}
	}
	a.bytes(orderFile, []byte(strings.Join(order, "\n")+"\n"), 0o644)
	return nil
}

// readModule returns the module in a file, which is compressed in newer packages.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		return run(ctx, "", "xz", "-dc", path)
	}
	return os.ReadFile(path)
}
