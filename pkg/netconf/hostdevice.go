package netconf

import (
	"errors"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// HostDevice is the configuration of the plugin host-device.
type HostDevice struct {
	Common
	RDMA
	Link
	Routing
	// Device is the name or an altname of the NIC's netdev.
	Device string `json:"device"`
	// HWAddr is the MAC address of the netdev.
	HWAddr string `json:"hwaddr"`
	// KernelPath is the device's path below /sys/devices.
	KernelPath string `json:"kernelpath"`
	// PCIBusID is a PCI address or the name of an auxiliary device. Multus
	// injects it for a NAD with a resourceName annotation.
	PCIBusID string `json:"pciBusID"`
	// DeviceID is the same as PCIBusID. Multus injects both.
	DeviceID string `json:"deviceID"`
	// Rail is the rail that the NIC must have in the node file. If no other key selects a NIC, a
	// number selects the NIC of that rail.
	Rail Rail `json:"rail"`
	// DPDKMode means that a userspace driver holds the NIC, so no netdev is moved.
	DPDKMode bool `json:"DPDKMode"`
	// UseInterfaceNetwork copies the NIC's addresses, routes and rules from the
	// host into the pod.
	UseInterfaceNetwork bool `json:"useInterfaceNetwork"`
	// KeepAddress means that the pod gets the addresses that the NIC has on the host, and no
	// others.
	KeepAddress bool `json:"keepAddress"`
	// MTU of the interface in the pod, in bytes. With 0 the NIC keeps its MTU.
	MTU int `json:"mtu"`
	// RoCETOS is the type of service of the pod's RDMA-CM connections, 0 to 255. With nil the
	// connections use the host's setting.
	RoCETOS *int `json:"roceTos"`
	// Allow lists the guardrails that this network overrides ([Overrides]).
	Allow []string `json:"allow"`
}

// ParseHostDevice reads the configuration of host-device.
func ParseHostDevice(stdin []byte) (*HostDevice, error) {
	c := &HostDevice{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	if err := c.complete(); err != nil {
		return nil, err
	}
	return c, nil
}

// complete checks the keys that not all plugins have, and applies the defaults.
func (c *HostDevice) complete() error {
	return errors.Join(checkMTU(c.MTU), checkAllow(c.Allow), checkTOS(c.RoCETOS), c.Rail.check(), c.checkVariables(), c.checkKeepAddress(),
		c.RDMA.complete(), c.Link.complete(), c.Routing.complete())
}

// checkKeepAddress returns an error if "keepAddress" is used with another key that sets addresses.
func (c *HostDevice) checkKeepAddress() error {
	if !c.KeepAddress {
		return nil
	}
	other := ""
	switch {
	case c.IPAM.Type != "":
		other = `"ipam"`
	case c.UseInterfaceNetwork:
		other = `"useInterfaceNetwork"`
	default:
		return nil
	}
	return failure.New(failure.InvalidConfig, `"keepAddress" and %s both give the interface its addresses`, other).Cure("remove one of the two keys")
}

// NeedsRail reports whether an attachment needs the rail of its NIC.
func (c *HostDevice) NeedsRail() bool { return needsRail(c.Rail, &c.Common, &c.Routing) }

// RailCure adds a cure to err, the error for a NIC without a rail, if nothing but the routing table
// needs the rail.
func (c *HostDevice) RailCure(err error) error { return railCure(err, c.Rail, &c.Common) }

// LinkWait returns how an ADD waits for the link.
func (c *HostDevice) LinkWait() LinkWait { return c.wait(c.RDMA.RDMA) }

// IDs returns the device IDs of the configuration, with the runtime's ID first. An ID may be a PCI
// address, the name of an auxiliary device, or a device plugin's own number, which identifies
// nothing on the host.
func (c *HostDevice) IDs() []string {
	return devices(c.RuntimeConfig.DeviceID, c.PCIBusID, c.DeviceID)
}

// devices returns the IDs that are not empty, or nil if all are empty. It returns PCI addresses in lower case, as sysfs
// has them (pci_setup_device). The names of other devices have no colon, and are not changed.
func devices(ids ...string) (some []string) {
	for _, id := range ids {
		switch {
		case strings.Contains(id, ":"):
			some = append(some, strings.ToLower(id))
		case id != "":
			some = append(some, id)
		}
	}
	return some
}
