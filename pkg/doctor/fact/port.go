package fact

import (
	"fmt"
	"net/netip"
	"strings"
)

// Port is a port of an RDMA device.
type Port struct {
	Device    string      `json:"device"`
	Port      uint32      `json:"port"`
	State     string      `json:"state"`     // "ACTIVE"
	PhysState string      `json:"physState"` // "LinkUp"
	LinkLayer string      `json:"linkLayer"` // "Ethernet" or "InfiniBand"
	ActiveMTU int         `json:"activeMTU"` // of RDMA packets; the kernel computes it from the interface's MTU (iboe_get_mtu)
	TableSize int         `json:"tableSize"` // the number of entries of the GID table
	GIDs      Fact[[]GID] `json:"gids"`      // the entries that are in use
	// LID is the local identifier of an InfiniBand port, and SMLID is the local identifier of its
	// subnet manager. A value of 0 means that there is none. IsSM is true if a subnet manager runs
	// on the port. PKeys are the used entries of the port's table of partition keys, by index.
	// Rules do not read these four facts for RoCE ports.
	LID   Fact[uint32] `json:"lid"`
	SMLID Fact[uint32] `json:"smLID"`
	IsSM  Fact[bool]   `json:"isSM"`
	PKeys Fact[[]PKey] `json:"pkeyTable"`
}

// PKey is an entry of a table of partition keys.
type PKey struct {
	Index int    `json:"index"`
	Key   string `json:"key"` // "0xffff"
}

// GID is an entry of a GID table.
type GID struct {
	Index  int    `json:"index"`
	Value  string `json:"value"`
	Type   string `json:"type"` // "RoCE v2", "IB/RoCE v1"
	Netdev string `json:"netdev,omitempty"`
}

// InfiniBand is the link layer of InfiniBand ports. RoCE ports have the link layer "Ethernet".
const InfiniBand = "InfiniBand"

// Name returns a name that distinguishes the port from the NIC's other ports.
func (p *Port) Name() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }

// IsRoCEv2 reports whether the entry has the type RoCE v2.
func (g *GID) IsRoCEv2() bool { return strings.Contains(strings.ToLower(g.Type), "v2") }

// Address returns the address that the GID is made from. The result is invalid if the GID's value
// cannot be parsed as an address.
func (g *GID) Address() netip.Addr {
	a, _ := netip.ParseAddr(g.Value)
	return a.Unmap()
}
