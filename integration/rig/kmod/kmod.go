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
// (finit_module(2)). It is an error if the module is there already.
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

// LoadAll loads what an order names ([wire.LoadOrder]): on each line a file
// beside it, and its parameters. Modules that are there already are passed over.
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

// ReloadNICs loads the NICs' driver anew with these parameters: whatever was
// done to the NICs, and wherever they are, they are back as the kernel finds
// them. It fails if their driver is in use.
func ReloadNICs(parameters string) error {
	if err := unix.DeleteModule("fakerdma", 0); err != nil {
		return fmt.Errorf("unload the NICs' driver: %w", err)
	}
	return Load(wire.NICModule, parameters)
}

// Disk loads the drivers for the machine's disk, and mounts it at dir, which it
// makes. What is written there outlives the machine.
func Disk(dir string) error {
	if err := LoadAll(wire.Devices); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount("/dev/vda", dir, "ext4", 0, ""))
}

// ErrNoSoftRoCE is wrapped by [SoftRoCE] where the driver could not be built.
var ErrNoSoftRoCE = errors.New("the rig has no Soft-RoCE")

// SoftRoCE loads the driver that gives any NIC an RDMA device with a data path
// (`rdma link add … type rxe netdev …`). Where the rig has none the error wraps
// [ErrNoSoftRoCE], and is the reason.
func SoftRoCE() error {
	if why, err := os.ReadFile(wire.NoSoftRoCE); err == nil {
		return fmt.Errorf("%w: %s", ErrNoSoftRoCE, strings.TrimSpace(string(why)))
	}
	return LoadAll(wire.SoftRoCE)
}
