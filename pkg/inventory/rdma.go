package inventory

import (
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// RDMA is the RDMA part of an attachment.
type RDMA struct {
	Mode    string       `json:"mode"` // of the machine when the NIC was attached
	Devices []RDMADevice `json:"devices"`
}

// RDMADevice is an RDMA device of an attachment. It has what is recorded and, if the pod is alive,
// the current state of the device.
type RDMADevice struct {
	Name        string `json:"name"` // on the host
	NodeGUID    string `json:"nodeGUID"`
	Parent      string `json:"parent"`              // PCI function or auxiliary device of the RDMA device
	Port        uint32 `json:"port,omitempty"`      // port of the interface
	Netdev      string `json:"netdev,omitempty"`    // netdev of the port, if it is a link below the NIC or master, such as a bond's member
	State       string `json:"state,omitempty"`     // current state of the port; "?" if that cannot be read
	PhysState   string `json:"physState,omitempty"` // current physical state of the port; "?" if that cannot be read
	Uverbs      string `json:"uverbs,omitempty"`
	UverbsAtADD string `json:"uverbsAtADD,omitempty"` // only if Uverbs was different at ADD
	Lent        bool   `json:"lent"`                  // the device is in the pod netns, and only there
	GIDs        []GID  `json:"gids,omitempty"`
}

// GID is the RoCE v2 GID of an address.
type GID struct {
	Address string `json:"address"`
	Index   int    `json:"index"`
	Value   string `json:"value"`
	Missing bool   `json:"missing,omitempty"` // the GID existed at ADD, but is not found now
}

// Unknown replaces a value that cannot be read.
const Unknown = "?"

// describeRDMA returns the RDMA part of a record, or nil if the record has no such part.
func describeRDMA(r *ledger.RDMA) *RDMA {
	if r == nil {
		return nil
	}
	p := &RDMA{Mode: r.Mode, Devices: []RDMADevice{}}
	for _, d := range r.Devices {
		shown := RDMADevice{
			Name: d.Name, NodeGUID: d.NodeGUID.String(), Parent: d.ParentDev, Port: d.Port, Netdev: d.Netdev, Uverbs: d.Uverbs, Lent: d.Lent,
		}
		for _, g := range r.GIDs {
			if g.Device == d.Name {
				shown.GIDs = append(shown.GIDs, GID{Address: g.Address, Index: g.Index, Value: g.Value})
			}
		}
		p.Devices = append(p.Devices, shown)
	}
	return p
}
