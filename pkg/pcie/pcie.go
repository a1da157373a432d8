package pcie

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Device is a PCI function.
type Device struct {
	Address string // "0000:3b:00.0"
	Class   uint32 // base class, subclass and interface, for example 0x020000 for an Ethernet controller
	Vendor  uint16
	Device  uint16
	Driver  string // "" if no driver is bound
	NUMA    int    // NUMA node, -1 if the machine does not name it
	// Path has the host bridge ("pci0000:3a"), and then the bridges from there to the
	// device, in order.
	Path []string
}

// Tree has the PCI functions of the machine.
type Tree struct {
	devices map[string]*Device
}

// Read returns the PCI functions below sys, the root of sysfs. sys is "/sys" except in
// tests. A machine without a PCI bus has no functions.
func Read(sys string) (*Tree, error) { return read(sys, func(uint32) bool { return true }) }

// ReadNICs is like [Read], but returns only the network controllers. It reads a fraction of
// the files.
func ReadNICs(sys string) (*Tree, error) { return read(sys, isNetwork) }

// read returns the functions for whose class wanted returns true.
func read(sys string, wanted func(class uint32) bool) (*Tree, error) {
	t := &Tree{devices: map[string]*Device{}}
	dir := filepath.Join(sys, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("list the PCI devices: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		class := uint32(number(path, "class", 0))
		target, err := os.Readlink(path)
		if err != nil || !wanted(class) {
			continue // the function is not wanted, or was unplugged just now
		}
		t.devices[e.Name()] = &Device{
			Address: e.Name(),
			Class:   class, Vendor: uint16(number(path, "vendor", 0)), Device: uint16(number(path, "device", 0)),
			Driver: linkBase(path, "driver"), NUMA: int(number(path, "numa_node", -1)), Path: bridges(target),
		}
	}
	return t, nil
}

// step matches the parts of a device's path that are on PCI: functions and host bridges,
// including host bridges behind another device. It is compiled on first use, because a
// plugin seldom uses it.
var step = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(pci)?[0-9a-f]{4,}:[0-9a-f]{2}(:[0-9a-f]{2}\.[0-7])?$`)
})

// bridges returns the parts of the path above the device that are on PCI.
func bridges(target string) []string {
	var path []string
	for part := range strings.SplitSeq(filepath.Dir(target), "/") {
		if step().MatchString(part) {
			path = append(path, part)
		}
	}
	return path
}

// number returns the number in a file of the device, or other if there is no number.
func number(dir, file string, other int64) int64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return other
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 0, 64)
	if err != nil {
		return other
	}
	return n
}

func linkBase(dir, name string) string {
	target, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// ByAddress returns the function at a PCI address, or nil if there is none.
func (t *Tree) ByAddress(address string) *Device { return t.devices[address] }

// The classes of devices (PCI Code and ID Assignment Specification, section 1).
const (
	classNetwork     = 0x02
	classVGA         = 0x0300
	class3D          = 0x0302
	classDisplay     = 0x0380 // "other display controller"
	classAccelerator = 0x1200 // "processing accelerator"
)

// NICs returns the network controllers, by address.
func (t *Tree) NICs() []*Device {
	return t.matching(func(d *Device) bool { return isNetwork(d.Class) })
}

func isNetwork(class uint32) bool { return class>>16 == classNetwork }

// The vendors of GPUs, and of accelerators that are used for training like GPUs.
const (
	vendorNVIDIA = 0x10de
	vendorAMD    = 0x1002
	vendorHabana = 0x1da3
)

// gpuClasses are the classes that the vendors' GPUs have. A class alone is not enough: the
// display of a server's BMC has the class of a GPU, and a CPU's offload engine has the
// class of an accelerator. Sources: NVIDIA's driver (open-gpu-kernel-modules,
// kernel-open/nvidia/nv-pci-table.c) binds to VGA and 3D controllers. Linux's amdgpu
// (drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c, pciidlist) binds to VGA and other display
// controllers and to processing accelerators. habanalabs binds by device
// (drivers/accel/habanalabs/common/habanalabs_drv.c); lspci shows Gaudi as an accelerator.
var gpuClasses = map[uint16][]uint32{
	vendorNVIDIA: {classVGA, class3D},
	vendorAMD:    {classVGA, classDisplay, classAccelerator},
	vendorHabana: {classAccelerator},
}

// GPUs returns the GPUs of NVIDIA and AMD and the accelerators of Habana (Gaudi), by address.
func (t *Tree) GPUs() []*Device {
	return t.matching(func(d *Device) bool { return slices.Contains(gpuClasses[d.Vendor], d.Class>>8) })
}

// matching returns the functions for which match returns true, by address.
func (t *Tree) matching(match func(*Device) bool) []*Device {
	var list []*Device
	for _, d := range t.devices {
		if match(d) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *Device) int { return cmp.Compare(a.Address, b.Address) })
	return list
}
