package netconf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"net"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// IBSRIOV is the configuration of the plugin ib-sriov. It has the keys of host-device, and the settings of the InfiniBand
// virtual function under the keys of ib-sriov-cni.
type IBSRIOV struct {
	HostDevice
	// PKey is the partition of which the port must be a member. With zero any partition will do. ib-kubernetes also reads
	// PKey, and makes the port a member.
	PKey PKey `json:"pkey"`
	// LinkState is "auto", "enable", "disable", or "" to leave the link state unchanged.
	LinkState string `json:"link_state"`
	// RDMAIsolation means that the RDMA device must move into the pod, which needs RDMA's exclusive
	// mode.
	RDMAIsolation bool `json:"rdmaIsolation"`
	// IBKubernetesEnabled means that ADD fails until ib-kubernetes has given the pod a GUID.
	IBKubernetesEnabled bool `json:"ibKubernetesEnabled"`
	// VFIOPCIMode means that a userspace driver holds the function.
	VFIOPCIMode bool `json:"vfioPciMode"`
	// Args are the arguments of the pod's annotation ("cni-args"), which ib-kubernetes writes.
	Args struct {
		CNI struct {
			GUID string `json:"guid"`
			App  string `json:"mellanox.infiniband.app"` // "configured" once the fabric manager knows the GUID
		} `json:"cni"`
	} `json:"args"`

	// GUID is set as the VF's node GUID and port GUID. 0 leaves both unchanged.
	GUID uint64 `json:"-"`
}

// configured is the value that ib-kubernetes writes when it has added the GUID to the partition.
const configured = "configured"

// ParseIBSRIOV reads the configuration of ib-sriov.
func ParseIBSRIOV(stdin []byte) (*IBSRIOV, error) {
	c := &IBSRIOV{}
	if err := parse(stdin, c, &c.Common); err != nil {
		return nil, err
	}
	guid, err := parseGUID(cmp.Or(c.RuntimeConfig.InfinibandGUID, c.Args.CNI.GUID))
	c.GUID = guid
	if err := errors.Join(err, refuseDHCP(&c.Common), oneOf("link_state", c.LinkState, linkStates...), c.checkIsolation(), c.HostDevice.complete()); err != nil {
		return nil, err
	}
	return c, nil
}

// Await returns an error of kind TryAgain while the pod waits for ib-kubernetes. Only ADD needs what ib-kubernetes
// writes.
func (c *IBSRIOV) Await() error {
	if !c.IBKubernetesEnabled || c.Args.CNI.App == configured && c.GUID != 0 {
		return nil
	}
	return failure.New(failure.TryAgain, `ib-kubernetes has not given the pod a GUID yet: in the network's "cni-args", "mellanox.infiniband.app" is %q, and "guid" is %q`,
		c.Args.CNI.App, cmp.Or(c.RuntimeConfig.InfinibandGUID, c.Args.CNI.GUID)).
		Cure(`the kubelet tries again; if that does not help, see the log of ib-kubernetes, or remove "ibKubernetesEnabled"`)
}

func (c *IBSRIOV) checkIsolation() error {
	if !c.RDMAIsolation || c.RDMA.RDMA != RDMAOff {
		return nil
	}
	return failure.New(failure.InvalidConfig, `"rdmaIsolation" moves the RDMA device into the pod, but "rdma" is "off"`).Cure("remove one of the two keys")
}

// parseGUID returns the GUID, written as in "ip link set … vf 0 port_guid". It returns 0 for "".
func parseGUID(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	mac, err := net.ParseMAC(text)
	guid := uint64(0)
	if err == nil && len(mac) == 8 {
		guid = binary.BigEndian.Uint64(mac)
	}
	if guid == 0 || guid == math.MaxUint64 {
		return 0, failure.New(failure.InvalidConfig, "%.40q is not a valid port GUID", text).
			Cure(`write it as "02:00:00:00:00:00:00:01": eight bytes, neither all 00 nor all ff`)
	}
	return guid, nil
}

// LinkWait returns how an ADD waits for the link. A port with a new GUID is active only when the subnet manager has seen
// the GUID.
func (c *IBSRIOV) LinkWait() LinkWait {
	w := c.HostDevice.LinkWait()
	if c.LinkTimeout == "" && !w.Required && c.GUID != 0 {
		w.Timeout = joinTimeout
	}
	return w
}
