package netconf

import (
	"cmp"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// RDMAChained is the configuration of the plugin rdma, which in a chain follows the plugin that
// made the pod's interface. A user who adds the plugin rdma wants RDMA, so an empty key "rdma"
// means "required" here.
type RDMAChained struct {
	Common
	RDMA
	Link
	// DeviceID is the NIC's PCI address or auxiliary device. Multus injects it into every plugin of
	// a NAD with a resourceName annotation. Without a DeviceID the plugin uses the device of the
	// interface.
	DeviceID string `json:"deviceID"`
	// PCIBusID is the same as DeviceID. Multus injects both.
	PCIBusID string `json:"pciBusID"`
	// RoCETOS has the same meaning as in [HostDevice].
	RoCETOS *int `json:"roceTos"`
	// Allow lists the guardrails that this network overrides ([Overrides]).
	Allow []string `json:"allow"`

	// byDefault means that the configuration has no key "rdma".
	byDefault bool
}

// LinkWait returns how ADD waits for the link. If the configuration has neither "rdma" nor "linkTimeout", as
// in configurations for rdma-cni, a link that is down is not an error, because rdma-cni ignores the link.
func (c *RDMAChained) LinkWait() LinkWait {
	if c.byDefault && c.LinkTimeout == "" {
		return LinkWait{}
	}
	return c.wait(c.RDMA.RDMA)
}

// ParseRDMAChained reads the configuration of rdma.
func ParseRDMAChained(stdin []byte) (*RDMAChained, error) {
	c := &RDMAChained{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	// The plugin that made the interface handles the addresses.
	c.IPAM, c.parsed = IPAM{}, nil
	if string(c.PrevResult) == "null" {
		c.PrevResult = nil
	}
	c.byDefault = c.RDMA.RDMA == ""
	c.RDMA.RDMA = cmp.Or(c.RDMA.RDMA, RDMARequired)
	if err := errors.Join(checkAllow(c.Allow), checkTOS(c.RoCETOS), c.RDMA.complete(), c.Link.complete()); err != nil {
		return nil, err
	}
	return c, nil
}

// NeedPrevResult returns an error if a chained plugin is called outside a chain.
func (c *Common) NeedPrevResult() error {
	if len(c.PrevResult) > 0 {
		return nil
	}
	return failure.New(failure.InvalidConfig, "the plugin %q works in a chain only: Required prevResult missing", c.Type).
		Cure(`put the plugin into "plugins", after the plugin that makes the interface (host-device, sriov)`)
}

// IDs returns the device IDs of the configuration, like [HostDevice.IDs].
func (c *RDMAChained) IDs() []string {
	return devices(c.RuntimeConfig.DeviceID, c.DeviceID, c.PCIBusID)
}
