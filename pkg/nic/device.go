package nic

import (
	"os"
	"path/filepath"
)

// The following methods return facts about a device of the host, such as
// "0000:3b:00.0", from sysfs. The facts are the same in every network namespace,
// even while the device's netdev or RDMA device is in a pod.

// Bound reports whether a driver holds the device. No driver holds an unplugged
// device.
func (h *Host) Bound(device string) bool { return h.deviceHas(device, "driver") }

// HasNetdev reports whether the device has a netdev in any network namespace. While
// the netdev is in a pod, its sysfs directory stays, but is empty.
func (h *Host) HasNetdev(device string) bool { return h.deviceHas(device, "net") }

// HasRDMADevice reports whether the device has an RDMA device in any network
// namespace. While the RDMA device is in a pod, its sysfs directory stays, but is
// empty.
func (h *Host) HasRDMADevice(device string) bool { return h.deviceHas(device, "infiniband") }

// isRDMAAlone reports whether the device has an RDMA device, but no netdev in any
// network namespace.
func (h *Host) isRDMAAlone(device string) bool {
	return h.HasRDMADevice(device) && !h.HasNetdev(device)
}

// MakesIPoIB reports whether ib_ipoib is loaded, which makes a netdev for each InfiniBand port.
func (h *Host) MakesIPoIB() bool { return exists(filepath.Join(h.Sys, "module/ib_ipoib")) }

// HasRDMACore reports whether the kernel's RDMA core is loaded. It reads sysfs, because
// opening the core's netlink socket could load it.
func (h *Host) HasRDMACore() bool { return exists(filepath.Join(h.Sys, "class/infiniband")) }

// HasOneNIC reports whether the device can have only one netdev and one RDMA device, as
// virtual functions and subfunctions do. If such a device now has a netdev with another
// MAC, or an RDMA device with another GUID, the former one no longer exists. A physical
// function may have several netdevs: those of its ports and its representors.
func (h *Host) HasOneNIC(device string) bool {
	return h.deviceHas(device, "physfn") || h.deviceHas(device, "sfnum")
}

// deviceHas reports whether the sysfs directory of the device, on any bus, has the given
// entry.
func (h *Host) deviceHas(device, entry string) bool {
	if !validName(device) {
		return false
	}
	buses, _ := os.ReadDir(filepath.Join(h.Sys, "bus")) // if sysfs is missing, no fact is known
	for _, bus := range buses {
		if _, err := os.Lstat(filepath.Join(h.Sys, "bus", bus.Name(), "devices", device, entry)); err == nil {
			return true
		}
	}
	return false
}
