package nic

import (
	"os"
	"path/filepath"
)

// The following methods return facts about a device of the host, such as
// "0000:3b:00.0", from sysfs. They are the same in every network namespace,
// also while the device's netdev or RDMA device is in a pod.

// Bound reports whether a driver holds the device. An unplugged device has
// none.
func (h *Host) Bound(device string) bool { return h.deviceHas(device, "driver") }

// HasNetdev reports whether a driver has made a netdev of the device, in any
// network namespace: the directory stays, empty, while the netdev is in a pod.
func (h *Host) HasNetdev(device string) bool { return h.deviceHas(device, "net") }

// HasRDMADevice reports whether a driver has made an RDMA device of the device,
// in any network namespace: the directory stays, empty, while it is in a pod.
func (h *Host) HasRDMADevice(device string) bool { return h.deviceHas(device, "infiniband") }

// isRDMAAlone reports whether the device has an RDMA device and no netdev, in any network namespace.
func (h *Host) isRDMAAlone(device string) bool {
	return h.HasRDMADevice(device) && !h.HasNetdev(device)
}

// MakesIPoIB reports whether ib_ipoib is loaded, which makes a netdev for each InfiniBand port.
func (h *Host) MakesIPoIB() bool { return exists(filepath.Join(h.Sys, "module/ib_ipoib")) }

// HasRDMACore reports whether the kernel's RDMA core is loaded. It reads sysfs, because
// opening the core's netlink socket could load it.
func (h *Host) HasRDMACore() bool { return exists(filepath.Join(h.Sys, "class/infiniband")) }

// HasOneNIC reports whether the device can have only one netdev and one RDMA device, as
// virtual functions and subfunctions do. If such a device has a netdev with another MAC,
// or an RDMA device with another GUID, the first one no longer exists. A physical
// function may have several, of its ports and representors.
func (h *Host) HasOneNIC(device string) bool {
	return h.deviceHas(device, "physfn") || h.deviceHas(device, "sfnum")
}

// deviceHas reports whether the directory of a device on any bus has an entry.
func (h *Host) deviceHas(device, entry string) bool {
	if !validName(device) {
		return false
	}
	buses, _ := os.ReadDir(filepath.Join(h.Sys, "bus")) // without sysfs there are no facts
	for _, bus := range buses {
		if _, err := os.Lstat(filepath.Join(h.Sys, "bus", bus.Name(), "devices", device, entry)); err == nil {
			return true
		}
	}
	return false
}
