package resource

// NIC has the facts of a NIC of the node. Those of a lent NIC are of the time when it was
// lent. A fact that is not known is the zero value.
type NIC struct {
	PCI       string   // "0000:3b:00.0"; empty for a NIC without a PCI function
	Names     []string // of the netdev on the host: its name, then its altnames
	MAC       string   // the permanent one, if there is one, in lower case
	Vendor    string   // four hexadecimal digits, as Device
	Device    string
	Driver    string
	LinkType  string   // Ethernet or InfiniBand
	PKey      uint16   // of the netdev's partition, with the bit of full membership; 0 if it has none
	ACPIIndex int      // 0 if there is none
	RDMA      []string // names of its RDMA devices on the host
	// PF is the name of the physical function's netdev on the host, if the NIC is a
	// virtual function. VF is its number there.
	PF string
	VF int
	// Parent is the PCI address of the physical function, if the NIC is a virtual function.
	Parent string
	// Path has the host bridge and the PCI bridges above the NIC, as pcie.Device.Path.
	Path []string
	// NUMA is nil if the machine does not say.
	NUMA *int
	// CharDevices are the paths of its RDMA devices' own char devices, below
	// /dev/infiniband, without that of the RDMA connection manager, which all share.
	CharDevices []string
	// Protected is the reason why no network may be lent this NIC (a guardrail, or the
	// node file), empty if there is none.
	Protected string
}

// The link types of NICs.
const (
	Ethernet   = "ether"
	InfiniBand = "infiniband"
)

// Mode is how a pool offers its NICs.
type Mode string

// The modes.
const (
	// Shared offers a number of equal devices that stand for all NICs of the pool, as
	// k8s-rdma-shared-dev-plugin does.
	Shared Mode = "shared"
	// Exclusive offers each NIC as one device, whose ID is its PCI address.
	Exclusive Mode = "exclusive"
	// PerRail makes one exclusive pool for each rail, "<name>_rail_<N>".
	PerRail Mode = "perRail"
)

// Pool is a resource of the node, with the NICs that it has now.
type Pool struct {
	// Resource is the resource's name with its prefix, "rdma/hca_gpu".
	Resource string
	Mode     Mode // Shared or Exclusive
	NICs     []NIC
	Devices  int  // number of devices of a shared pool
	Rail     *int // of a pool of PerRail, else nil
	Topology bool // the kubelet is told the devices' NUMA nodes
	// UMAD hands containers the management device (umad) of InfiniBand NICs.
	UMAD bool
	// AdditionalInfo is sriov-network-device-plugin's additionalInfo: values by key, by
	// PCI address or "*".
	AdditionalInfo map[string]map[string]string
}

// Reason is the kind of a [Problem], one word in CamelCase, as reasons of conditions and
// events in Kubernetes.
type Reason = string

// The reasons.
const (
	NothingSelected Reason = "NothingSelected" // a selector, or one value of it, matches no NIC
	Overlap         Reason = "Overlap"         // a NIC is selected twice
	Protected       Reason = "Protected"       // a NIC may not be lent
	NoRail          Reason = "NoRail"          // a NIC has no rail
	NoPCI           Reason = "NoPCI"           // a NIC has no PCI function
	NoRDMA          Reason = "NoRDMA"          // a NIC has no RDMA char devices
	Ambiguous       Reason = "Ambiguous"       // several NICs where one is needed
	Deprecated      Reason = "Deprecated"      // a key that still counts
	UnknownKey      Reason = "UnknownKey"      // a key that does not count
)

// Problem is something that the administrator should know, and that does not keep the
// rest from working.
type Problem struct {
	Resource string // "" if it is not about one resource
	Reason   Reason
	Message  string // object, cause and cure
}
