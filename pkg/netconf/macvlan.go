package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Macvlan is the configuration of the plugin macvlan.
type Macvlan struct {
	Common
	RDMA
	Link
	Routing
	// Master is the NIC of the macvlan. If Master is empty, Rail selects the NIC. Without Rail the
	// master is the default route's interface.
	Master string `json:"master"`
	// Rail is the rail that the NIC must have in the node file.
	Rail Rail `json:"rail"`
	// Mode is "bridge" (also when empty), "private", "vepa" or "passthru".
	Mode string `json:"mode"`
	// MTU in bytes, at most the master's MTU. With 0 the child inherits the master's MTU.
	MTU int `json:"mtu"`
	// MAC of the child. runtimeConfig.mac and the MAC of CNI_ARGS override it.
	MAC string `json:"mac"`
	// LinkInContainer means that the master is in the pod netns.
	LinkInContainer bool `json:"linkInContainer"`
	// BCQueueLen is the length of the broadcast queue. With 0 the kernel chooses it.
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
		return nil, failure.New(failure.InvalidConfig, "unknown macvlan mode: %q", c.Mode).Cure("use bridge, private, vepa or passthru")
	}
	c.MAC = cmp.Or(c.RuntimeConfig.MAC, args.MAC, c.MAC)
	_, err := c.HardwareAddr()
	err = errors.Join(err, checkMTU(c.MTU), c.Rail.check(), c.checkVariables(), c.checkRailInPod(),
		c.refuseKeepAddress("a macvlan"), c.RDMA.complete(), c.Link.complete(), c.Routing.complete())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// checkRailInPod returns an error if the network needs a rail but the master is in the pod: only
// the host's NICs have rails.
func (c *Macvlan) checkRailInPod() error {
	if !c.LinkInContainer || !c.NeedsRail() {
		return nil
	}
	switch {
	case !c.Rail.IsZero():
	case !c.VariesByRail():
		return failure.New(failure.InvalidConfig,
			`the routing table depends on the rail of a host NIC, but with "linkInContainer" the master is in the pod`).
			Cure(`set "table" in "routing" to the number of a table`)
	default:
		return failure.New(failure.InvalidConfig, `the addresses depend on the rail of a host NIC, but with "linkInContainer" the master is in the pod`).
			Cure(`remove "linkInContainer", or give addresses that do not depend on the rail`)
	}
	return failure.New(failure.InvalidConfig, `"rail" names a host NIC, but with "linkInContainer" the master is in the pod`).
		Cure(`remove one of the two keys, and name the master in the pod with "master"`)
}

// refuseKeepAddress returns an error if the network has "keepAddress", which is a key of
// host-device. The NIC below a child stays on the host with its addresses.
func (c *Common) refuseKeepAddress(child string) error {
	if !c.sets("keepAddress") {
		return nil
	}
	return failure.New(failure.InvalidConfig, `"keepAddress" is for host-device: %s leaves its NIC, with the NIC's addresses, on the host`, child).
		Cure(`remove the key, and give addresses by "ipam", or use host-device`)
}

// sets reports whether the configuration has the key with a value other than null, false and "".
func (c *Common) sets(key string) bool {
	var keys map[string]any
	if err := json.Unmarshal(c.Raw, &keys); err != nil {
		return false // parse has reported the invalid JSON
	}
	for k, v := range keys {
		if strings.EqualFold(k, key) && v != nil && v != false && v != "" { // as encoding/json reads keys
			return true
		}
	}
	return false
}

// NeedsRail reports whether an attachment needs the rail of its NIC.
func (c *Macvlan) NeedsRail() bool { return needsRail(c.Rail, &c.Common, &c.Routing) }

// RailCure adds a cure to err, the error for a NIC without a rail, if nothing but the routing table
// needs the rail.
func (c *Macvlan) RailCure(err error) error { return railCure(err, c.Rail, &c.Common) }

// LinkWait returns how an ADD waits for the link. If the master is in the pod, the link is never
// required, because the pod gets no RDMA through it.
func (c *Macvlan) LinkWait() LinkWait {
	if c.LinkInContainer {
		return c.wait(RDMAOff)
	}
	return c.wait(c.RDMA.RDMA)
}

// HardwareAddr returns the requested MAC of the child, or nil.
func (c *Macvlan) HardwareAddr() (net.HardwareAddr, error) { return parseMAC(c.MAC) }

// parseMAC returns the MAC of an Ethernet interface, or nil for "".
func parseMAC(text string) (net.HardwareAddr, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != 6 {
		err = &net.AddrError{Err: "not six bytes long", Addr: text}
	}
	return mac, failure.From(err, failure.InvalidConfig, "MAC address %q", text).Cure("write it as aa:bb:cc:dd:ee:ff")
}
