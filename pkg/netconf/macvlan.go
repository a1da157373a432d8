package netconf

import (
	"errors"
	"net"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Macvlan is the configuration of the plugin macvlan.
type Macvlan struct {
	Common
	RDMA
	Link
	// Master is the NIC of the macvlan; empty means the interface of the
	// default route.
	Master string `json:"master"`
	// Mode is "bridge" (also when empty), "private", "vepa" or "passthru".
	Mode string `json:"mode"`
	// MTU in bytes, at most the master's; 0 inherits it.
	MTU int `json:"mtu"`
	// MAC of the child; runtimeConfig.mac and the MAC of CNI_ARGS override it.
	MAC string `json:"mac"`
	// LinkInContainer: the master is in the pod netns.
	LinkInContainer bool `json:"linkInContainer"`
	// BCQueueLen is the length of the broadcast queue, 0 for the kernel's.
	BCQueueLen uint32 `json:"bcqueuelen"`
}

// ParseMacvlan reads the configuration of macvlan. args are the CNI_ARGS.
func ParseMacvlan(stdin []byte, args Args) (*Macvlan, error) {
	c := &Macvlan{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	switch c.Mode {
	case "":
		c.Mode = "bridge"
	case "bridge", "private", "vepa", "passthru":
	default:
		return nil, failure.WithCure(failure.New(failure.InvalidConfig, "unknown macvlan mode: %q", c.Mode), "use bridge, private, vepa or passthru")
	}
	if args.MAC != "" {
		c.MAC = args.MAC
	}
	if c.RuntimeConfig.MAC != "" {
		c.MAC = c.RuntimeConfig.MAC
	}
	_, err := c.HardwareAddr()
	if err := errors.Join(err, checkMTU(c.MTU), c.RDMA.complete(), c.Link.complete()); err != nil {
		return nil, err
	}
	return c, nil
}

// LinkWait returns how an ADD waits for the link. If the master is in the pod, the link is
// never required, because the pod gets no RDMA by it.
func (c *Macvlan) LinkWait() LinkWait {
	if c.LinkInContainer {
		return c.wait(RDMAOff)
	}
	return c.wait(c.RDMA.RDMA)
}

// HardwareAddr returns the requested MAC of the child, or nil.
func (c *Macvlan) HardwareAddr() (net.HardwareAddr, error) {
	if c.MAC == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(c.MAC)
	if err == nil && len(mac) != 6 {
		err = &net.AddrError{Err: "not six bytes long", Addr: c.MAC}
	}
	return mac, failure.WithCure(failure.Wrap(err, failure.InvalidConfig, "MAC address %q", c.MAC), "write it as aa:bb:cc:dd:ee:ff")
}
