package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// maxNamed bounds the number of holders that an error names.
const maxNamed = 3

// functions returns a description of the virtual functions (sriov_numvfs) and
// subfunctions of the device of l, or "" if the device has none. When l leaves the
// host, they lose their link, because the uplink goes down (mlx5e_close). In
// addition, the holder of l may set their MAC, VLAN, trust and rate.
func (h *Host) functions(l *link.Link) string {
	if dir := h.functionDir(l); dir != "" {
		return h.functionsIn(dir)
	}
	return ""
}

// functionsIn does what functions does, for the sysfs directory of a PCI function.
func (h *Host) functionsIn(dir string) string {
	var devices []string
	// Glob fails only for a malformed pattern, and these patterns are constants.
	virtual, _ := filepath.Glob(filepath.Join(dir, "virtfn*"))
	for _, v := range virtual {
		if target, err := os.Readlink(v); err == nil {
			devices = append(devices, filepath.Base(target))
		}
	}
	sub, _ := filepath.Glob(filepath.Join(dir, "*", "sfnum"))
	for _, s := range sub {
		devices = append(devices, filepath.Base(filepath.Dir(s)))
	}
	if len(devices) == 0 {
		return ""
	}
	what := fmt.Sprintf("%d virtual functions or subfunctions depend on it (%s, …)", len(devices), devices[0])
	if len(devices) == 1 {
		what = "a virtual function or subfunction depends on it: " + devices[0]
	}
	return what + h.heldBy(devices)
}

// heldBy returns a description of which of the devices are lent, and to whom.
func (h *Host) heldBy(devices []string) string {
	if h.Holder == nil {
		return ""
	}
	var held []string
	for _, d := range devices {
		if who := h.Holder(d); who != "" && len(held) < maxNamed {
			held = append(held, fmt.Sprintf("%s is lent to %s", d, who))
		}
	}
	if len(held) == 0 {
		return ""
	}
	return "; " + strings.Join(held, ", ")
}

// functionDir returns the sysfs directory of the PCI function to which the netdev l
// belongs, or "" if l does not belong to a PCI function. A subfunction is below a
// PCI function, but it is another device.
func (h *Host) functionDir(l *link.Link) string {
	switch l.ParentBus {
	case "pci", "virtio":
		if pci := h.pciOf(l); pci != "" {
			return filepath.Join(h.Sys, "bus/pci/devices", pci)
		}
	}
	return ""
}
