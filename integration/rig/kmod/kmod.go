package kmod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// Load loads the module in a file with these parameters, as "a=1 b=2"
// (finit_module(2)). It fails if the module is loaded already.
func Load(path, parameters string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), parameters, 0); err != nil {
		return fmt.Errorf("load %s with %q: %w", filepath.Base(path), parameters, err)
	}
	return nil
}

// LoadAll loads the modules of an order file ([wire.LoadOrder]): on each line a
// file beside it, and its parameters. Modules that are loaded already are
// skipped.
func LoadAll(order string) error {
	text, err := os.ReadFile(order)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		name, parameters, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := Load(filepath.Join(filepath.Dir(order), name), parameters); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// ReloadNICs reloads the NICs' driver with these parameters. The kernel then
// makes the NICs again on the host, in their first state, wherever they were,
// with the RDMA devices mlx5_0, mlx5_1 … in the order of their PCI addresses.
// It fails if the driver is in use.
func ReloadNICs(parameters string) error {
	if err := unix.DeleteModule("fakerdma", 0); err != nil {
		return fmt.Errorf("unload the NICs' driver: %w", err)
	}
	// A driver that is loaded gets the devices in the order in which the kernel found
	// them: one that was unplugged and found again would be the last.
	const bus = "/sys/bus/pci/"
	if err := os.WriteFile(bus+"drivers_autoprobe", []byte("0"), 0); err != nil {
		return err
	}
	err := Load(wire.NICModule, parameters)
	if err == nil {
		err = probe(bus)
	}
	return errors.Join(err, os.WriteFile(bus+"drivers_autoprobe", []byte("1"), 0))
}

// probe lets the drivers take the devices of a bus that match them and have no driver, in
// the order of their addresses.
func probe(bus string) error {
	devices, err := os.ReadDir(bus + "devices")
	if err != nil {
		return err
	}
	for _, d := range devices {
		if _, err := os.Stat(bus + "devices/" + d.Name() + "/driver"); err == nil {
			continue
		}
		if err := os.WriteFile(bus+"drivers_probe", []byte(d.Name()), 0); err != nil {
			return fmt.Errorf("probe %s: %w", d.Name(), err)
		}
	}
	return nil
}

// Disk loads the drivers for the machine's disk, and mounts it at dir, which it
// makes. Files there outlive the machine.
func Disk(dir string) error {
	if err := LoadAll(wire.Devices); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount("/dev/vda", dir, "ext4", 0, ""))
}

// ErrNoSoftRoCE is wrapped by [SoftRoCE] if the driver could not be built.
var ErrNoSoftRoCE = errors.New("the rig has no Soft-RoCE")

// SoftRoCE loads the driver that gives any NIC an RDMA device with a data path
// (`rdma link add … type rxe netdev …`). If the rig has none the error wraps
// [ErrNoSoftRoCE] and contains the reason.
func SoftRoCE() error {
	if why, err := os.ReadFile(wire.NoSoftRoCE); err == nil {
		return fmt.Errorf("%w: %s", ErrNoSoftRoCE, strings.TrimSpace(string(why)))
	}
	return LoadAll(wire.SoftRoCE)
}
