package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// maxNamed bounds the holders in an error.
const maxNamed = 3

// functions describes the virtual functions (sriov_numvfs) and subfunctions of the
// device of l, "" if it has none. They lose their link when l leaves (mlx5e_close
// sets the uplink down, and they follow), and the holder of l may set their MAC,
// VLAN, trust and rate.
func (h *Host) functions(l *link.Link) string {
	if dir := h.functionDir(l); dir != "" {
		return h.functionsIn(dir)
	}
	return ""
}

// functionsIn is functions for the sysfs directory of a PCI function.
func (h *Host) functionsIn(dir string) string {
	var devices []string
	// The only error is a malformed pattern, and these are constants.
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

// heldBy describes the holders of those of the devices that are lent.
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

// functionDir returns the sysfs directory of the PCI function whose netdev l
// is, "" if there is none: a subfunction is below a function, but is another
// device.
func (h *Host) functionDir(l *link.Link) string {
	switch l.ParentBus {
	case "pci", "virtio":
		if pci := h.pciOf(l); pci != "" {
			return filepath.Join(h.Sys, "bus/pci/devices", pci)
		}
	}
	return ""
}
