package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// DriverOf returns the name of the driver that is bound to a PCI function, or "" if no driver is
// bound.
func (h *Host) DriverOf(pci string) string { return h.driverOf(&NIC{PCI: pci}) }

// Unbind unbinds the driver from a PCI function (Documentation/ABI/testing/sysfs-bus-pci). It
// returns when the driver has removed the function's interface and RDMA device, whatever network
// namespace they are in.
func (h *Host) Unbind(pci, driver string) error { return h.writeDriver(driver, "unbind", pci) }

// Bind binds the driver to a PCI function. It returns when the driver has probed the function.
// Interfaces and RDMA devices may come later, because some drivers make them through devices of
// their own on the auxiliary bus.
func (h *Host) Bind(pci, driver string) error { return h.writeDriver(driver, "bind", pci) }

// Probe lets the kernel choose and bind the driver of a PCI function that has no driver.
func (h *Host) Probe(pci string) error {
	if !h.IsPCI(pci) {
		return failure.New(failure.Kernel, "%q is not a PCI function", pci)
	}
	err := os.WriteFile(filepath.Join(h.Sys, "bus/pci/drivers_probe"), []byte(pci), 0)
	return failure.Wrap(err, failure.Kernel, "probe %s", pci)
}

// DriverOverride returns the name of the only driver that may be bound to a PCI function, or "" if
// any driver may be bound.
func (h *Host) DriverOverride(pci string) string {
	text, _ := os.ReadFile(filepath.Join(h.Sys, "bus/pci/devices", pci, "driver_override")) // older kernels do not have this file
	if name := strings.TrimSpace(string(text)); name != "(null)" {
		return name
	}
	return ""
}

func (h *Host) writeDriver(driver, file, pci string) error {
	if !validName(driver) || !h.IsPCI(pci) {
		return failure.New(failure.Kernel, "either %q is not a driver of PCI functions, or %q is not a PCI function of this host", driver, pci)
	}
	err := os.WriteFile(filepath.Join(h.Sys, "bus/pci/drivers", driver, file), []byte(pci), 0)
	return failure.From(err, failure.Kernel, "%s %s, of driver %s", file, pci, driver).Cure("see the kernel log for the driver's reason")
}

// FreeBelow returns the path of a free char device that the kernel would choose instead of one of
// paths. paths are the char devices of one RDMA device, from [Host.CharDevices]. If that RDMA
// device were re-created, the kernel would choose the lowest free numbers for its char devices
// (ib_uverbs_add_one, ib_umad_init_port). FreeBelow returns "" if the numbers would stay.
func (h *Host) FreeBelow(paths []string) string {
	for _, kind := range []struct{ class, prefix string }{{"infiniband_verbs", "uverbs"}, {"infiniband_mad", "umad"}} {
		taken := h.entries("class", kind.class)
		for _, path := range paths {
			number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), kind.prefix))
			if err != nil {
				continue // this path belongs to the other class
			}
			for n := range number {
				if name := fmt.Sprintf("%s%d", kind.prefix, n); !slices.Contains(taken, name) {
					return CharDevice(name)
				}
			}
		}
	}
	return ""
}
