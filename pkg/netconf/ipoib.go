package netconf

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// IPoIB is the configuration of the plugin ipoib.
type IPoIB struct {
	Common
	RDMA
	Link
	Routing
	// Master is the InfiniBand interface of the port. If Master is empty, a device ID or Rail
	// selects the port. Without these the master is the default route's interface, as with
	// upstream's plugin.
	Master string `json:"master"`
	// PCIBusID is a PCI address or an auxiliary device. Multus injects it for a NAD with a resourceName annotation.
	PCIBusID string `json:"pciBusID"`
	// DeviceID is the same as PCIBusID. Multus injects both.
	DeviceID string `json:"deviceID"`
	// Rail is the rail that the NIC must have in the node file.
	Rail Rail `json:"rail"`
	// PKey is the partition. With zero the child has the master's partition.
	PKey PKey `json:"pkey"`
	// Mode is "datagram" (also when empty). Other modes are refused: see [IPoIB.check].
	Mode string `json:"mode"`
	// Umcast decides whether the interface ignores multicast groups that programs join directly
	// (ipoib_set_umcast). Nil means true.
	Umcast *bool `json:"umcast"`
	// MTU in bytes. With 0 the kernel chooses the MTU for the mode and the partition.
	MTU int `json:"mtu"`
}

// PKey is the key "pkey": a partition, written as "0x8001", as "0x1" or as a number. PKey does not
// keep the bit of full membership, because the port's table of keys has that bit.
type PKey uint16

// UnmarshalJSON implements [json.Unmarshaler].
func (k *PKey) UnmarshalJSON(data []byte) error {
	*k = 0
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	if text == "null" || text == "" {
		return nil
	}
	v, err := strconv.ParseUint(text, 0, 16)
	if v &= 0x7fff; err != nil || v == 0 {
		return failure.New(failure.Decode, `"pkey" cannot be %.40s`, data).
			Cure(`write the partition as "0x8001" or "0x1": 0x1 to 0x7fff, with or without 0x8000`)
	}
	*k = PKey(v)
	return nil
}

// MaxDatagram is the highest MTU of an InfiniBand interface in datagram mode, in bytes: 4096 minus the header of
// IPoIB (IPOIB_UD_MTU).
const MaxDatagram = 4092

// ParseIPoIB reads the configuration of ipoib. args are the CNI_ARGS.
func ParseIPoIB(stdin []byte, args Args) (*IPoIB, error) {
	c := &IPoIB{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	err := errors.Join(c.check(), c.checkAddress(args), checkMTU(c.MTU), c.Rail.check(), c.checkVariables(),
		c.refuseKeepAddress("an IPoIB child"), c.RDMA.complete(), c.Link.complete(), c.Routing.complete())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// check returns an error for impossible values, and for connected mode. While the kernel sets that mode it releases
// the RTNL, and it may then fail without getting the RTNL back (ipoib_set_mode, Linux 6.12): its caller unlocks the
// RTNL of another task. A child that was made by netlink has no file in sysfs for the mode.
func (c *IPoIB) check() error {
	switch {
	case c.Mode == "connected":
		return failure.New(failure.InvalidConfig, "the kernel cannot safely make a child in connected mode").Cure(`use datagram, or lend the port with host-device`)
	case c.Mode != "" && c.Mode != "datagram":
		return failure.New(failure.InvalidConfig, "unknown mode: %q", c.Mode).Cure("use datagram")
	case c.MTU > MaxDatagram:
		return failure.New(failure.InvalidConfig, "invalid MTU %d, must be at most %d", c.MTU, MaxDatagram).Cure(`set "mtu" to at most %d`, MaxDatagram)
	}
	return refuseDHCP(&c.Common)
}

func refuseDHCP(c *Common) error {
	if c.IPAM.Type != "dhcp" {
		return nil
	}
	return failure.New(failure.InvalidConfig, "the IPAM plugin dhcp cannot ask for an address on InfiniBand: its requests are Ethernet frames").
		Cure("use whereabouts, static or host-local")
}

// checkAddress returns an error if a MAC is requested: the kernel chooses the number of the queue
// pair in the address.
func (c *IPoIB) checkAddress(args Args) error {
	if args.MAC == "" && c.RuntimeConfig.MAC == "" && !c.sets("mac") {
		return nil
	}
	return failure.New(failure.InvalidConfig, "an InfiniBand interface cannot be given a MAC: bytes 1 to 3 are the number of its queue pair").
		Cure("remove the MAC from the network and the pod")
}

// IDs returns the device IDs of the configuration, with the runtime's ID first.
func (c *IPoIB) IDs() []string { return devices(c.RuntimeConfig.DeviceID, c.PCIBusID, c.DeviceID) }

// NeedsRail reports whether an attachment needs the rail of its NIC.
func (c *IPoIB) NeedsRail() bool { return needsRail(c.Rail, &c.Common, &c.Routing) }

// RailCure adds a cure to err, the error for a NIC without a rail, if nothing but the routing table
// needs the rail.
func (c *IPoIB) RailCure(err error) error { return railCure(err, c.Rail, &c.Common) }

// joinTimeout bounds ADD's wait for the link if linkTimeout is missing and RDMA is not required. An interface joins
// its partition's broadcast group in a fraction of a second. Before that it sends and receives nothing.
const joinTimeout = 5 * time.Second

// LinkWait returns how an ADD waits for the link: until the interface has joined the partition's
// broadcast group.
func (c *IPoIB) LinkWait() LinkWait {
	w := c.wait(c.RDMA.RDMA)
	if c.LinkTimeout == "" && !w.Required {
		w.Timeout = joinTimeout
	}
	return w
}
