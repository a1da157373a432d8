package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// PortState is the logical state of a port (enum ib_port_state).
type PortState uint8

// Logical states. Only an active port passes RDMA traffic.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

func (s PortState) String() string {
	return stateName(uint8(s), "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
}

// PhysState is the physical state of a port (enum ib_port_phys_state).
type PhysState uint8

// Physical states that users see.
const (
	PhysPolling  PhysState = 2
	PhysDisabled PhysState = 3
	PhysLinkUp   PhysState = 5
)

func (s PhysState) String() string {
	return stateName(uint8(s), "NOP", "SLEEP", "POLLING", "DISABLED", "TRAINING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY_TEST")
}

func stateName(s uint8, names ...string) string {
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", s)
}

// Port is one port of a device at the time of the read.
type Port struct {
	Number    uint32
	State     PortState
	Phys      PhysState
	LinkLayer string // "Ethernet" or "InfiniBand"
	LID       uint32 // LID, SMLID and LMC are 0 on Ethernet
	SMLID     uint32
	LMC       uint8
	// IsSM means that a subnet manager, active or standby, runs on the port (IsSM of
	// PortInfo:CapabilityMask). It is false on Ethernet.
	IsSM bool
	// Netdev and NetdevName are the index and the name of the port's interface. They are 0 and ""
	// if the port has no interface in the Core's namespace: the kernel names the interface only
	// there.
	Netdev     int
	NetdevName string
}

// capSM is IB_PORT_SM of enum ib_port_capability_mask_bits. The kernel reports the mask only for
// InfiniBand ports.
const capSM = 1 << 1

// parsePort reads the answer to RDMA_NLDEV_CMD_PORT_GET (fill_port_info).
func parsePort(a nlattr.Attrs) (Port, error) {
	p := Port{
		Number:     uint32(number(a, nl.RDMA_NLDEV_ATTR_PORT_INDEX)),
		State:      PortState(number(a, nl.RDMA_NLDEV_ATTR_PORT_STATE)),
		Phys:       PhysState(number(a, nl.RDMA_NLDEV_ATTR_PORT_PHYS_STATE)),
		LID:        uint32(number(a, nl.RDMA_NLDEV_ATTR_LID)),
		SMLID:      uint32(number(a, nl.RDMA_NLDEV_ATTR_SM_LID)),
		LMC:        uint8(number(a, nl.RDMA_NLDEV_ATTR_LMC)),
		IsSM:       number(a, nl.RDMA_NLDEV_ATTR_CAP_FLAGS)&capSM != 0,
		Netdev:     int(uint32(number(a, attrNetdevIndex))),
		NetdevName: a.Text(nl.RDMA_NLDEV_ATTR_NDEV_NAME),
	}
	if !has(a, nl.RDMA_NLDEV_ATTR_PORT_INDEX) || p.Number == 0 {
		return Port{}, nlattr.ErrMalformed
	}
	return p, nil
}

// Port reads one port of the device (RDMA_NLDEV_CMD_PORT_GET). The error wraps
// [ErrNotFound] if the device is not in the namespace or has no such port.
func (c *Core) Port(d Device, number uint32) (Port, error) {
	var p Port
	err := c.inNetns(func() (err error) { p, err = c.port(d, number); return err })
	return p, err
}

// Ports reads all ports of the device.
func (c *Core) Ports(d Device) ([]Port, error) {
	var all []Port
	err := c.inNetns(func() (err error) { all, err = c.ports(d); return err })
	return all, err
}

func (c *Core) ports(d Device) ([]Port, error) {
	var all []Port
	for n := uint32(1); n <= min(d.Ports, maxPorts); n++ {
		p, err := c.port(d, n)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// maxPorts bounds how many ports of a device are read. NICs have one or two ports. Only a switch
// has more, and a switch has no RDMA itself.
const maxPorts = 255

func (c *Core) port(d Device, number uint32) (Port, error) {
	p, err := c.portOf(d, number)
	if err == nil {
		p.LinkLayer, err = c.linkLayer(d, number)
		err = c.unreadPort(c.ifGone(err, d), d, number)
	}
	if err != nil {
		return Port{}, err
	}
	return p, nil
}

// portOf is like port, but leaves out the link layer, which only sysfs has.
func (c *Core) portOf(d Device, number uint32) (Port, error) {
	a, err := c.ask(cmdPortGet, deviceAttr(d.Index), portAttr(number))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return Port{}, hasLeft(fmt.Sprintf("%s with port %d", d.Name, number), c.ns.Path, err)
	}
	var p Port
	if err == nil {
		p, err = parsePort(a)
	}
	return p, c.unreadPort(err, d, number)
}

func (c *Core) unreadPort(err error, d Device, number uint32) error {
	return failure.Wrap(err, failure.Kernel, "read port %d of RDMA device %s in netns %s", number, d.Name, c.ns.Path)
}

// portDir returns the directory of a port below the sysfs root.
func portDir(d Device, number uint32) string {
	return filepath.Join("class/infiniband", d.Name, "ports", strconv.FormatUint(uint64(number), 10))
}

// linkLayer reads the link layer from sysfs, because netlink does not report it. The protocol of
// the device implies the link layer as well, but not if the ports of the device differ.
func (c *Core) linkLayer(d Device, number uint32) (string, error) {
	layer, err := c.readSys(filepath.Join(portDir(d, number), "link_layer"))
	if !errors.Is(err, fs.ErrNotExist) {
		return layer, err
	}
	if d.IsInfiniBand() {
		return "InfiniBand", nil
	}
	return "Ethernet", nil
}

// ByNetdev returns the device and port of the interface with this index in the namespace. The error
// wraps [ErrNotFound] if there is none. ByNetdev does not compare names, because every pod has a
// "net1".
func (c *Core) ByNetdev(ifindex int) (Device, Port, error) {
	all, err := c.Devices()
	if err != nil {
		return Device{}, Port{}, err
	}
	for _, d := range all {
		ports, err := c.Ports(d)
		if errors.Is(err, ErrNotFound) {
			continue // the device was moved meanwhile
		}
		if err != nil {
			return Device{}, Port{}, err
		}
		for _, p := range ports {
			if ifindex > 0 && p.Netdev == ifindex {
				return d, p, nil
			}
		}
	}
	return Device{}, Port{}, fmt.Errorf("%w for the interface with index %d in netns %s", ErrNotFound, ifindex, c.ns.Path)
}
