package inventory

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
)

// Attachment is an attachment as users see it. Its JSON form is the output of "railctl show".
type Attachment struct {
	Pod         string       `json:"pod,omitempty"` // namespace/name
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifname"`
	Plugin      string       `json:"plugin"`
	Network     string       `json:"network"`
	NIC         string       `json:"nic"` // name of the NIC on the host; for a macvlan, its master
	PCI         string       `json:"pci,omitempty"`
	Driver      string       `json:"driver,omitempty"` // of a NIC without a netdev
	MAC         string       `json:"mac,omitempty"`
	MTU         int          `json:"mtu,omitempty"`
	Link        string       `json:"link,omitempty"` // current state of the interface: up or down; empty if that cannot be read
	Addresses   []string     `json:"addresses"`
	RDMA        *RDMA        `json:"rdma,omitempty"`
	VF          *Function    `json:"vf,omitempty"`
	Created     time.Time    `json:"created"`
	Phase       ledger.Phase `json:"phase"`
	State       string       `json:"state"` // state of the pod netns: alive or gone
	PodNetns    string       `json:"podNetns"`
	HostNetns   string       `json:"hostNetns"`

	record        *ledger.Record
	adminDown     bool            // the interface is set down in the pod
	hardware      device.Hardware // of the interface in the pod, if it is a lent NIC
	ofEarlierBoot bool
}

// Function has the settings of a lent virtual function that the attachment has changed.
type Function struct {
	PF     string `json:"pf"` // PCI address of the physical function
	Number int    `json:"number"`
	// Settings has the settings that the network wants, by name: "VLAN": "100 qos 5 802.1ad".
	Settings map[string]string `json:"settings"`
}

// describeVF returns the virtual function of a record, or nil if there is none.
func describeVF(v *ledger.VF) *Function {
	if v == nil {
		return nil
	}
	shown := &Function{PF: v.PF, Number: v.Number, Settings: map[string]string{}}
	for _, s := range sriov.Text(v.Want) {
		shown.Settings[s.Name] = s.Value
	}
	return shown
}

// The states of a pod netns.
const (
	Alive = "alive"
	Gone  = "gone"
)

// The states of a link.
const (
	LinkUp   = "up"   // the link has a carrier
	LinkDown = "down" // the link has no carrier, or is set down
)

// stateOfLink returns the state of a link.
func stateOfLink(l *link.Link) string {
	if l.IsUp() && l.HasCarrier() {
		return LinkUp
	}
	return LinkDown
}

// stateOf returns the state of the pod netns.
func stateOf(l *ledger.Ledger, r *ledger.Record) string {
	if l.Alive(r) {
		return Alive
	}
	return Gone
}

// describe returns the attachment with everything that the record has about it.
func describe(r *ledger.Record, state string) Attachment {
	a := Attachment{
		Pod: r.Pod.String(), ContainerID: r.ContainerID, IfName: r.IfName,
		Plugin: r.Plugin, Network: r.Network, NIC: r.NICName(), MAC: r.MAC, MTU: r.MTU,
		Addresses: []string{}, RDMA: describeRDMA(r.RDMA), VF: describeVF(r.VF), Created: r.Created, Phase: r.Phase, State: state,
		PodNetns: r.Netns.Path, HostNetns: r.HostNetns.ID.String(), record: r,
	}
	a.Addresses = append(a.Addresses, r.Addresses...)
	if r.Loan != nil {
		a.PCI, a.Driver = r.Loan.PCI, r.Loan.Driver
	}
	return a
}
