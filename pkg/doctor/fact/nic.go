package fact

import (
	"cmp"
	"slices"
	"strings"
)

// NICs are the facts of the node's NICs and GPUs.
type NICs struct {
	List Fact[[]NIC] `json:"list"`
	// Others are the interfaces of the host that are not NICs: bonds, VLANs, bridges, veths.
	Others Fact[[]HostInterface] `json:"others"`
	GPUs   Fact[[]GPU]           `json:"gpus"`
	// Problems has the problems with the rails and pools of the node file, for example a selector
	// that matches no NIC.
	Problems Fact[[]string] `json:"problems"`
	// Fabric is the value of the key "fabric" in the node file. It is empty if the node file has no
	// such key.
	Fabric Fact[string] `json:"fabric"`
}

// IPoIBKind is the [HostInterface.Kind] of a child of an InfiniBand interface.
const IPoIBKind = "ipoib"

// HostInterface is an interface of the host that is not a NIC. Child interfaces of pods can lie on
// such an interface.
type HostInterface struct {
	Name     string   `json:"name"`
	AltNames []string `json:"altNames,omitempty"`
	MTU      int      `json:"mtu"`
	Kind     string   `json:"kind,omitempty"` // "bond", "vlan", "ipoib" (a child), …
	AdminUp  bool     `json:"adminUp,omitempty"`
	// Attachment is true if an attachment has the interface. The interface is then moving to a pod
	// or back to the host.
	Attachment bool `json:"attachment,omitempty"`
}

// GPU is a GPU of the node.
type GPU struct {
	PCI    string `json:"pci"`
	Vendor string `json:"vendor,omitempty"` // "10de"
	NUMA   *int   `json:"numa,omitempty"`
}

// NIC is a NIC of the node. It may be lent to a pod.
type NIC struct {
	Name      string   `json:"name"` // on the host
	AltNames  []string `json:"altNames,omitempty"`
	PCI       string   `json:"pci,omitempty"`
	Kind      string   `json:"kind,omitempty"`   // "pf", "vf" or "sf"
	Vendor    string   `json:"vendor,omitempty"` // of the PCI device, four hexadecimal digits; Device has the same form
	Device    string   `json:"device,omitempty"`
	Driver    string   `json:"driver,omitempty"`
	Rail      *int     `json:"rail,omitempty"`
	NUMA      *int     `json:"numa,omitempty"`
	LinkType  string   `json:"linkType,omitempty"` // "ether" or "infiniband"
	Protected string   `json:"protected,omitempty"`
	Uplink    bool     `json:"uplink,omitempty"` // true if a default route of the host leaves by the NIC, or by a link on the NIC
	// Holder is the pod that holds the NIC, as "namespace/name", or the pod's container if the pod
	// is not known. It is empty if no pod holds the NIC.
	Holder   string `json:"holder,omitempty"`
	Children int    `json:"children,omitempty"`
	Moving   bool   `json:"moving,omitempty"` // true while the NIC is being lent or returned
	// CharDevices are the paths of the char devices of the NIC's RDMA devices, for example
	// "/dev/infiniband/uverbs3".
	CharDevices []string `json:"charDevices,omitempty"`
	// Distances has the distance to each GPU of the node, by the GPU's PCI address: PIX, PXB, PHB,
	// NODE or SYS.
	Distances map[string]string `json:"distances,omitempty"`

	AdminUp  Fact[bool]   `json:"adminUp"`
	Carrier  Fact[bool]   `json:"carrier"`
	Mbps     Fact[int64]  `json:"mbps"` // 0 without a carrier
	MTU      Fact[int]    `json:"mtu"`
	Firmware Fact[string] `json:"firmware"`
	DCB      Fact[DCB]    `json:"dcb"` // the zero value if the driver does not support it
	ECN      Fact[ECN]    `json:"ecn"` // the zero value if the driver does not show it
	PCIe     Fact[PCIe]   `json:"pcie"`
	// CarrierDown is the number of times that the NIC has lost its carrier since the driver made
	// the NIC. Each move of the NIC to another network namespace also counts.
	CarrierDown Fact[uint64] `json:"carrierDown"`
	// Flaps are the losses of the carrier that were not caused by a move of the NIC or by an
	// administrator. They come from rail-agent's memory, so only facts that rail-agent reads have
	// them.
	Flaps Fact[Flaps] `json:"flaps"`
	// Addresses are the addresses of the NIC's interface, with prefix lengths. For a lent NIC they
	// are the addresses of its interface in the pod.
	Addresses Fact[[]string] `json:"addresses"`
	// Rising are the error counters that grew while facts were collected.
	Rising Fact[Rising] `json:"rising"`
	// IOMMU is the type of the NIC's IOMMU group: "identity", "DMA" or "DMA-FQ". It is empty
	// without an IOMMU.
	IOMMU Fact[string] `json:"iommu"`
	// Redirecting are the PCI bridges above the NIC that send traffic between devices through the
	// root complex (ACS request redirect).
	Redirecting Fact[[]string] `json:"redirecting"`
	// ManagedBy is the network manager that configures the NIC: "NetworkManager" or
	// "systemd-networkd". It is empty if none does.
	ManagedBy Fact[string] `json:"managedBy"`
	Ports     Fact[[]Port] `json:"ports"` // of the NIC's RDMA devices
	VFs       Fact[VFs]    `json:"vfs"`
	// Functions are the settings of the virtual functions of a physical function. The fact is not set if the NIC has no
	// virtual functions. rail-agent does not read it for its own rules, because some firmware needs milliseconds for
	// each virtual function.
	Functions Fact[[]Function] `json:"functions,omitzero"`
}

// DCB is the data center bridging of a NIC.
type DCB struct {
	Supported bool   `json:"supported"`     // true if the driver supports it
	PFC       string `json:"pfc,omitempty"` // the priorities with priority flow control: "3", "3,4"
}

// ECN is the congestion control of RoCE with explicit congestion notification (DCQCN). The driver of MLNX_OFED and DOCA
// shows it in /sys/class/net/<interface>/ecn/roce_{np,rp}/enable/<priority>. The kernel's own driver has no such files.
type ECN struct {
	Known bool `json:"known,omitempty"` // true if the driver has the files
	// NP and RP are lists of priorities, for example "3" or "0,3". If a switch has marked a packet
	// with a priority in NP, the NIC notifies the sender. If the NIC itself is notified, it slows
	// down traffic with a priority in RP.
	NP string `json:"np,omitempty"`
	RP string `json:"rp,omitempty"`
}

// Flaps counts losses of a carrier.
type Flaps struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"` // the time of the observation
}

// PCIe is the link of a device to its slot.
type PCIe struct {
	GTs      float64 `json:"gts"` // giga-transfers per second and lane
	MaxGTs   float64 `json:"maxGTs"`
	Width    int     `json:"width"` // lanes
	MaxWidth int     `json:"maxWidth"`
}

// Rising has the counters that grew between two reads.
type Rising struct {
	Seconds  float64           `json:"seconds"`  // between the two reads
	Counters map[string]uint64 `json:"counters"` // the increase of each counter, by name
}

// VFs are the virtual functions of a physical function.
type VFs struct {
	Count int    `json:"count"`
	Mode  string `json:"mode,omitempty"` // of the embedded switch: "legacy" or "switchdev"
}

// Function has the settings of a virtual function. The physical function keeps these settings.
type Function struct {
	Number int    `json:"number"`
	PCI    string `json:"pci,omitempty"`
	VLAN   string `json:"vlan,omitempty"` // "100 qos 5 802.1ad", empty for none
	// SpoofCheck and Trust are nil if the driver does not report them.
	SpoofCheck *bool `json:"spoofCheck,omitempty"`
	Trust      *bool `json:"trust,omitempty"`
	Held       bool  `json:"held,omitempty"` // true if a record in the ledger has the function
}

// These are the PCI vendor IDs that rules know.
const (
	VendorMellanox = "15b3"
	VendorNVIDIA   = "10de"
)

// IsRDMA reports whether the NIC has, should have or may have an RDMA device. A NIC of NVIDIA
// should have one. A NIC whose RDMA devices could not be read may have one.
func (n *NIC) IsRDMA() bool {
	return len(n.CharDevices) > 0 || len(n.Ports.Value) > 0 || n.Ports.Error != "" || n.IsMellanox() && n.Kind != "" // a representor has no kind, and no RDMA device
}

// IsUplink reports whether a default route of the host leaves by the NIC. Facts from versions
// before the field Uplink have only the reason of the guardrail, in Protected.
func (n *NIC) IsUplink() bool {
	return n.Uplink || strings.Contains(n.Protected, "a default route of the host")
}

// Label returns the name of the NIC in findings.
func (n *NIC) Label() string { return cmp.Or(n.Name, n.PCI, "without a name") }

// Object returns the object of findings about the NIC.
func (n *NIC) Object() string { return "NIC " + n.Label() }

// Distances are the kinds of paths between a NIC and a GPU, the shortest first.
var Distances = []string{"PIX", "PXB", "PHB", "NODE", "SYS"}

// Rank returns the place of a distance in [distances]. An unknown distance comes after all others.
func Rank(distance string) int {
	if i := slices.Index(Distances, distance); i >= 0 {
		return i
	}
	return len(Distances)
}

// Model returns the NIC's driver and the device ID of its model, as far as these are known.
func (n *NIC) Model() string {
	return strings.TrimSpace(cmp.Or(n.Driver, "no driver") + " " + n.Device)
}

// IsMellanox reports whether the NIC is one of NVIDIA's.
func (n *NIC) IsMellanox() bool {
	return strings.EqualFold(strings.TrimPrefix(n.Vendor, "0x"), VendorMellanox)
}
