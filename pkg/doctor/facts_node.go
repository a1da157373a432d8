package doctor

import "time"

// Host are the facts of the machine.
type Host struct {
	Kernel     Fact[string] `json:"kernel"`     // "6.1.0-18-amd64"
	CmdLine    Fact[string] `json:"cmdline"`    // the kernel's command line
	Hypervisor Fact[bool]   `json:"hypervisor"` // true if the machine is virtual
	RDMAMode   Fact[string] `json:"rdmaMode"`   // "exclusive" or "shared"
	// Modules are the names of the kernel's modules: loaded modules and built-in modules.
	Modules Fact[[]string] `json:"modules"`
	// MOFED is the version of the vendor's driver package. It is empty if the kernel's own driver
	// is in use.
	MOFED Fact[string] `json:"mofed"`
	// DMABuf is true if the kernel can register the memory of a GPU with dma-buf. The fact is read
	// only if the module nvidia is loaded.
	DMABuf Fact[bool] `json:"dmabuf"`
	// NVIDIAOpen is true if the loaded module nvidia is the open one (its license in modinfo is
	// "Dual MIT/GPL"). Only the open module exports the memory of GPUs with dma-buf. Without the
	// module nvidia, NVIDIAOpen is false.
	NVIDIAOpen Fact[bool] `json:"nvidiaOpen"`
	// Origins has the source of each loaded RDMA module, by the module's name. The source is
	// [OriginKernel] if the module was built with the kernel, and [OriginPackage] otherwise.
	Origins Fact[map[string]string] `json:"origins"`
	// CharDevices are the paths of the files below /dev/infiniband. Uverbs are the names in the
	// kernel's directory /sys/class/infiniband_verbs.
	CharDevices Fact[[]string] `json:"charDevices"`
	Uverbs      Fact[[]string] `json:"uverbs"`
	// Memlock has the limits of locked memory of the daemons that run: containerd, the kubelet,
	// dockerd and crio. The children of a daemon inherit its limits.
	Memlock Fact[[]Memlock] `json:"memlock"`
	// LimitsConf are the lines about memlock in /etc/security/limits.conf and limits.d.
	LimitsConf Fact[[]string] `json:"limitsConf"`
	// Swaps are the active swap areas.
	Swaps Fact[[]string] `json:"swaps"`
	// Sysctls are values of files in /proc/sys. The key is the path below /proc/sys, for example
	// "net/ipv4/conf/all/rp_filter".
	Sysctls Fact[map[string]string] `json:"sysctls"`
	// KernelLog has the lines of the kernel's log that report a fault of a NIC and are at most one
	// day old.
	KernelLog Fact[[]string] `json:"kernelLog"`
}

// These are the values of [Host.Origins].
const (
	OriginKernel  = "kernel"
	OriginPackage = "package"
)

// Unlimited is the value of a limit that allows any amount.
const Unlimited int64 = -1

// Memlock is a process with its limits of locked memory, in bytes or [Unlimited].
type Memlock struct {
	Process string `json:"process"`
	PID     int    `json:"pid"`
	Soft    int64  `json:"soft"`
	Hard    int64  `json:"hard"`
}

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

// ipoibKind is the [HostInterface.Kind] of a child of an InfiniBand interface.
const ipoibKind = "ipoib"

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

// Ledger has the facts about the plugins' records on the node.
type Ledger struct {
	Dir         string             `json:"dir"`
	Attachments Fact[[]Attachment] `json:"attachments"`
	Unreadable  Fact[[]string]     `json:"unreadable"` // the records that cannot be read, each with the reason
	// Changed are the NICs that were returned with other settings than they had before they were
	// lent.
	Changed Fact[[]string] `json:"changed"`
}

// Attachment is a record of the ledger, with the present state of its pod and its interface.
type Attachment struct {
	Pod         string    `json:"pod,omitempty"` // namespace/name
	UID         string    `json:"uid,omitempty"` // of the pod
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	Plugin      string    `json:"plugin"`
	Network     string    `json:"network"`
	NIC         string    `json:"nic"`
	PCI         string    `json:"pci,omitempty"`
	Rail        *int      `json:"rail,omitempty"`
	Phase       string    `json:"phase"`
	Alive       bool      `json:"alive"` // true if the pod's netns exists
	InPod       bool      `json:"inPod"` // true if the interface is in the pod's netns
	Addresses   []string  `json:"addresses,omitempty"`
	RDMA        []string  `json:"rdma,omitempty"` // the RDMA devices that were lent
	Created     time.Time `json:"created"`
	Updated     time.Time `json:"updated"` // when its phase began
}

// CNI has the facts about the node's CNI directories.
type CNI struct {
	// Binaries are the files in the CNI directory that have the name of a rail-cni plugin.
	Binaries Fact[[]Binary] `json:"binaries"`
	// Primary is the path of the configuration that the runtime uses, which is the first by name.
	// It is empty if there is none.
	Primary Fact[string] `json:"primary"`
	// Multus is the version of Multus. It is empty if the node has no Multus.
	Multus Fact[string] `json:"multus"`
}

// Binary is a plugin's file.
type Binary struct {
	Path      string `json:"path"`
	SHA256    string `json:"sha256"`              // empty if there is no file
	Installed string `json:"installed,omitempty"` // the sum of the file that rail-agent installed here, empty if it installed none
	Version   string `json:"version,omitempty"`   // of a rail-cni plugin; empty if the plugin could not be asked
	RailCNI   bool   `json:"ours"`                // true if the file is a program of rail-cni
}

// Kubelet has the facts about device plugins and resources.
type Kubelet struct {
	// Allocatable has the number of allocatable devices of each resource that stands for RDMA NICs,
	// by the resource's name.
	Allocatable Fact[map[string]int64] `json:"allocatable"`
	// Capacity is like Allocatable, but also counts the devices that are not healthy.
	Capacity Fact[map[string]int64] `json:"capacity"`
	Pools    Fact[[]Pool]           `json:"pools"` // of the node file
	// Foreign has the signs that a device plugin of another project serves RDMA NICs. Each sign is
	// a text for people.
	Foreign Fact[[]string] `json:"foreign"`
	// Labels are the labels that Node Feature Discovery has put on the node.
	Labels Fact[map[string]string] `json:"labels"`
}

// Pool is a device pool.
type Pool struct {
	Resource string   `json:"resource"`
	Kind     string   `json:"kind"` // "shared", "exclusive", "perRail"
	NICs     []string `json:"nics"`
	Count    int64    `json:"count"`          // the number of devices that the pool should offer
	UMAD     bool     `json:"umad,omitempty"` // true if the pool also gives pods the management devices of InfiniBand ports
}

// Agent has the facts about rail-agent on the node.
type Agent struct {
	Running Fact[bool]   `json:"running"`
	Version Fact[string] `json:"version"`
	NRI     Fact[bool]   `json:"nri"` // true if rail-agent is connected to the runtime by NRI
	// Memlock is true if rail-agent sets, by NRI, an unlimited memory lock for the containers of
	// pods that have a NIC.
	Memlock Fact[bool] `json:"memlock"`
	// NotReturned is the number of attachments of dead pods that rail-agent could not end.
	NotReturned Fact[int] `json:"notReturned"`
	// Kubeconfig is the kubeconfig of the plugin whereabouts. Its path is empty if rail-agent does
	// not maintain the file.
	Kubeconfig Fact[Kubeconfig] `json:"kubeconfig"`
}

// Kubeconfig is the kubeconfig that the plugin whereabouts uses to reach the API server.
type Kubeconfig struct {
	Path    string `json:"path,omitempty"`
	Refused string `json:"refused,omitempty"` // the reason why the API server does not accept the kubeconfig
}
