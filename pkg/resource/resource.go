package resource

// NIC has the facts about a NIC of the node. If the NIC is lent, they are the facts at the time
// when it was lent. A fact that is not known is the zero value.
type NIC struct {
	PCI       string   // "0000:3b:00.0"; empty for a NIC without a PCI function
	Names     []string // of the netdev on the host: its name, then its altnames
	MAC       string   // in lower case; the permanent MAC, if the NIC has one
	Vendor    string   // four hexadecimal digits, as Device
	Device    string
	Driver    string
	LinkType  string   // Ethernet or InfiniBand
	PKey      uint16   // partition key of the netdev, with the bit of full membership; 0 if there is none
	ACPIIndex int      // 0 if there is none
	RDMA      []string // names of its RDMA devices on the host
	// PF is the name of the physical function's netdev on the host, if the NIC is a
	// virtual function. VF is the number of that virtual function.
	PF string
	VF int
	// Parent is the PCI address of the physical function, if the NIC is a virtual function.
	Parent string
	// Path has the host bridge and the PCI bridges above the NIC, as pcie.Device.Path has.
	Path []string
	// NUMA is nil if the machine does not report it.
	NUMA *int
	// CharDevices has the paths of the char devices that belong to the NIC's RDMA devices,
	// below /dev/infiniband. It does not have the char device of the RDMA connection manager,
	// which all RDMA devices share.
	CharDevices []string
	// Protected is the reason why this NIC may not be lent to any network (a guardrail, or the
	// node file). It is empty if there is no reason.
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
	Rail     *int // rail of a pool that PerRail made, otherwise nil
	Topology bool // the kubelet gets the NUMA nodes of the devices
	// UMAD is set if containers get the management device (umad) of InfiniBand NICs.
	UMAD bool
	// AdditionalInfo is the key additionalInfo of sriov-network-device-plugin. For each PCI
	// address, or "*", it has values by key.
	AdditionalInfo map[string]map[string]string
}

// Reason is the kind of a [Problem]. It is one word in CamelCase, like the reasons of conditions
// and events in Kubernetes.
type Reason = string

// The reasons.
const (
	NothingSelected Reason = "NothingSelected" // a selector, or one value of it, matches no NIC
	Overlap         Reason = "Overlap"         // a NIC is selected twice
	Protected       Reason = "Protected"       // a NIC may not be lent
	NoRail          Reason = "NoRail"          // a NIC has no rail
	NoPCI           Reason = "NoPCI"           // a NIC has no PCI function
	NoRDMA          Reason = "NoRDMA"          // a NIC has no RDMA char devices
	Ambiguous       Reason = "Ambiguous"       // there are several NICs, but exactly one is needed
	Deprecated      Reason = "Deprecated"      // a deprecated key, which still has its effect
	UnknownKey      Reason = "UnknownKey"      // an unknown key, which has no effect
)

// Problem is something that the administrator should know. The rest of the configuration still
// works.
type Problem struct {
	Resource string // "" if it is not about one resource
	Reason   Reason
	Message  string // object, cause and cure
}
