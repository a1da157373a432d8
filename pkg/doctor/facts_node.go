package doctor

import "time"

// Host are the facts of the machine.
type Host struct {
	Kernel     Fact[string] `json:"kernel"`     // "6.1.0-18-amd64"
	CmdLine    Fact[string] `json:"cmdline"`    // of the kernel
	Hypervisor Fact[bool]   `json:"hypervisor"` // it is a virtual machine
	RDMAMode   Fact[string] `json:"rdmaMode"`   // "exclusive" or "shared"
	// Modules are the loaded modules of the kernel, and those that it has built in and that
	// have a directory in /sys/module.
	Modules Fact[[]string] `json:"modules"`
	// MOFED is the version of the vendor's driver package, empty with the kernel's own driver.
	MOFED Fact[string] `json:"mofed"`
	// DMABuf reports whether the kernel can register memory of a GPU by dma-buf. It is read only
	// if the module nvidia is loaded.
	DMABuf Fact[bool] `json:"dmabuf"`
	// NVIDIAOpen reports whether the loaded module nvidia is the open one, which exports memory of
	// GPUs by dma-buf (its license in modinfo is "Dual MIT/GPL"). It is false without the module.
	NVIDIAOpen Fact[bool] `json:"nvidiaOpen"`
	// Origins are the sources of the files of the loaded RDMA modules, by the
	// module's name: [OriginKernel] below /lib/modules/VERSION/kernel, or built in, else
	// [OriginPackage].
	Origins Fact[map[string]string] `json:"origins"`
	// CharDevices are the paths below /dev/infiniband, Uverbs the names that the kernel has
	// in /sys/class/infiniband_verbs.
	CharDevices Fact[[]string] `json:"charDevices"`
	Uverbs      Fact[[]string] `json:"uverbs"`
	// Memlock are the limits of daemons whose children inherit them: containerd, the kubelet,
	// dockerd, crio; those that run.
	Memlock Fact[[]Memlock] `json:"memlock"`
	// LimitsConf are the memlock lines of /etc/security/limits.conf and limits.d.
	LimitsConf Fact[[]string] `json:"limitsConf"`
	// Swaps are the active swap areas.
	Swaps Fact[[]string] `json:"swaps"`
	// Sysctls are values of /proc/sys, by their path without that: "net/ipv4/conf/all/rp_filter".
	Sysctls Fact[map[string]string] `json:"sysctls"`
	// KernelLog has the lines of the last day's kernel log that report a fault of a NIC.
	KernelLog Fact[[]string] `json:"kernelLog"`
}

// The values of [Host.Origins].
const (
	OriginKernel  = "kernel"
	OriginPackage = "package"
)

// Unlimited is a limit without a bound.
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
	// Others are the interfaces of the host that are no NICs: bonds, VLANs, bridges, veths.
	Others Fact[[]HostInterface] `json:"others"`
	GPUs   Fact[[]GPU]           `json:"gpus"`
	// Problems has the problems with the node file's rails and pools: a selector that matches no
	// NIC, for example.
	Problems Fact[[]string] `json:"problems"`
	// Fabric is the key "fabric" of the node file, empty without it.
	Fabric Fact[string] `json:"fabric"`
}

// ipoibKind is the [HostInterface.Kind] of a child of an InfiniBand interface.
const ipoibKind = "ipoib"

// HostInterface is an interface of the host that is no NIC. Child interfaces can lie on it.
type HostInterface struct {
	Name     string   `json:"name"`
	AltNames []string `json:"altNames,omitempty"`
	MTU      int      `json:"mtu"`
	Kind     string   `json:"kind,omitempty"` // "bond", "vlan", "ipoib" (a child), …
	AdminUp  bool     `json:"adminUp,omitempty"`
	// Attachment is set if an attachment has the interface, which is on its way to a pod, or back.
	Attachment bool `json:"attachment,omitempty"`
}

// GPU is a GPU of the node.
type GPU struct {
	PCI    string `json:"pci"`
	Vendor string `json:"vendor,omitempty"` // "10de"
	NUMA   *int   `json:"numa,omitempty"`
}

// NIC is a NIC of the node, lent or not.
type NIC struct {
	Name      string   `json:"name"` // on the host
	AltNames  []string `json:"altNames,omitempty"`
	PCI       string   `json:"pci,omitempty"`
	Kind      string   `json:"kind,omitempty"`   // "pf", "vf" or "sf"
	Vendor    string   `json:"vendor,omitempty"` // of its PCI device, four hexadecimal digits, as Device
	Device    string   `json:"device,omitempty"`
	Driver    string   `json:"driver,omitempty"`
	Rail      *int     `json:"rail,omitempty"`
	NUMA      *int     `json:"numa,omitempty"`
	LinkType  string   `json:"linkType,omitempty"` // "ether" or "infiniband"
	Protected string   `json:"protected,omitempty"`
	Uplink    bool     `json:"uplink,omitempty"` // a default route of the host leaves by it, or by a link on it
	// Holder is the pod that has it, "namespace/name", or its container; empty for none.
	Holder   string `json:"holder,omitempty"`
	Children int    `json:"children,omitempty"`
	Moving   bool   `json:"moving,omitempty"` // it is just lent or returned
	// CharDevices are those of its RDMA devices: "/dev/infiniband/uverbs3".
	CharDevices []string `json:"charDevices,omitempty"`
	// Distances are those to the node's GPUs, by the GPU's PCI address: PIX, PXB, PHB, NODE, SYS.
	Distances map[string]string `json:"distances,omitempty"`

	AdminUp  Fact[bool]   `json:"adminUp"`
	Carrier  Fact[bool]   `json:"carrier"`
	Mbps     Fact[int64]  `json:"mbps"` // 0 without a carrier
	MTU      Fact[int]    `json:"mtu"`
	Firmware Fact[string] `json:"firmware"`
	DCB      Fact[DCB]    `json:"dcb"` // zero without support by its driver
	ECN      Fact[ECN]    `json:"ecn"` // zero if its driver has no files of it
	PCIe     Fact[PCIe]   `json:"pcie"`
	// CarrierDown is the number of losses of the carrier since the driver made the NIC. Each move
	// of the NIC counts, too.
	CarrierDown Fact[uint64] `json:"carrierDown"`
	// Flaps are the losses of the carrier that neither a move nor an administrator caused:
	// from rail-agent's memory. Only the agent's own facts have it.
	Flaps Fact[Flaps] `json:"flaps"`
	// Addresses are those of the netdev, with prefix lengths, of a lent NIC in its pod.
	Addresses Fact[[]string] `json:"addresses"`
	// Rising are the error counters that grew while facts were collected.
	Rising Fact[Rising] `json:"rising"`
	// IOMMU is the type of its group: "identity", "DMA", "DMA-FQ"; empty without an IOMMU.
	IOMMU Fact[string] `json:"iommu"`
	// Redirecting are the PCI bridges above it whose access control sends traffic between
	// devices through the root complex (ACS request redirect).
	Redirecting Fact[[]string] `json:"redirecting"`
	// ManagedBy is the network manager that configures it: "NetworkManager",
	// "systemd-networkd"; empty for none.
	ManagedBy Fact[string] `json:"managedBy"`
	Ports     Fact[[]Port] `json:"ports"` // of its RDMA devices
	VFs       Fact[VFs]    `json:"vfs"`
	// Functions are the settings of a physical function's virtual ones. It is not set if it has none, and not in
	// facts that rail-agent reads for itself, because some firmware needs milliseconds to answer for each of them.
	Functions Fact[[]Function] `json:"functions,omitzero"`
}

// DCB is the data center bridging of a NIC.
type DCB struct {
	Supported bool   `json:"supported"`     // by its driver
	PFC       string `json:"pfc,omitempty"` // the priorities with priority flow control: "3", "3,4"
}

// ECN is the congestion control of RoCE by explicit congestion notification (DCQCN), as the
// driver of MLNX_OFED and DOCA shows it: /sys/class/net/<interface>/ecn/roce_{np,rp}/enable/<priority>.
// The kernel's own driver has no such files.
type ECN struct {
	Known bool `json:"known,omitempty"` // the files are there
	// NP and RP are priorities: "3", "0,3". For those of NP the NIC notifies senders of packets
	// that a switch marked, for those of RP it slows down when it is notified.
	NP string `json:"np,omitempty"`
	RP string `json:"rp,omitempty"`
}

// Flaps are losses of a carrier.
type Flaps struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"` // of the observation
}

// PCIe is the link of a device to its slot.
type PCIe struct {
	GTs      float64 `json:"gts"` // giga-transfers per second and lane
	MaxGTs   float64 `json:"maxGTs"`
	Width    int     `json:"width"` // lanes
	MaxWidth int     `json:"maxWidth"`
}

// Rising are counters that grew.
type Rising struct {
	Seconds  float64           `json:"seconds"`
	Counters map[string]uint64 `json:"counters"` // the increase, by name
}

// VFs are the virtual functions of a physical function.
type VFs struct {
	Count int    `json:"count"`
	Mode  string `json:"mode,omitempty"` // of the embedded switch: "legacy" or "switchdev"
}

// Function has settings of a virtual function, which its physical function keeps.
type Function struct {
	Number int    `json:"number"`
	PCI    string `json:"pci,omitempty"`
	VLAN   string `json:"vlan,omitempty"` // "100 qos 5 802.1ad", empty for none
	// SpoofCheck and Trust are nil if the driver does not report them.
	SpoofCheck *bool `json:"spoofCheck,omitempty"`
	Trust      *bool `json:"trust,omitempty"`
	Held       bool  `json:"held,omitempty"` // a record has it
}

// Port is a port of an RDMA device.
type Port struct {
	Device    string      `json:"device"`
	Port      uint32      `json:"port"`
	State     string      `json:"state"`     // "ACTIVE"
	PhysState string      `json:"physState"` // "LinkUp"
	LinkLayer string      `json:"linkLayer"` // "Ethernet" or "InfiniBand"
	ActiveMTU int         `json:"activeMTU"` // of RDMA packets, as it follows from the interface's MTU (iboe_get_mtu)
	TableSize int         `json:"tableSize"` // of the GID table
	GIDs      Fact[[]GID] `json:"gids"`      // the entries that are in use
	// LID and SMLID are an InfiniBand port's own local identifier and its subnet manager's, 0
	// for none. IsSM: a subnet manager runs on the port. PKeys are the entries of its table of
	// partition keys that are in use, by index. Rules do not read them for RoCE ports.
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

// Ledger are the facts of the plugins' records on the node.
type Ledger struct {
	Dir         string             `json:"dir"`
	Attachments Fact[[]Attachment] `json:"attachments"`
	Unreadable  Fact[[]string]     `json:"unreadable"` // records, with the reasons
	// Changed are the NICs that were returned with other settings than they had.
	Changed Fact[[]string] `json:"changed"`
}

// Attachment is a record, with what became of it.
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
	Alive       bool      `json:"alive"` // its netns exists
	InPod       bool      `json:"inPod"` // its interface is there
	Addresses   []string  `json:"addresses,omitempty"`
	RDMA        []string  `json:"rdma,omitempty"` // the devices that were lent
	Created     time.Time `json:"created"`
	Updated     time.Time `json:"updated"` // when its phase began
}

// CNI are the facts of the node's CNI directories.
type CNI struct {
	// Binaries are the plugins of rail-cni's names in the CNI directory.
	Binaries Fact[[]Binary] `json:"binaries"`
	// Primary is the path of the configuration that the runtime uses: the first by name;
	// empty if there is none.
	Primary Fact[string] `json:"primary"`
	// Multus is the version of Multus, empty if the node has none.
	Multus Fact[string] `json:"multus"`
}

// Binary is a plugin's file.
type Binary struct {
	Path      string `json:"path"`
	SHA256    string `json:"sha256"`              // empty if there is no file
	Installed string `json:"installed,omitempty"` // the sum that the agent installed, empty if it did not
	Version   string `json:"version,omitempty"`   // of ours, empty if it could not be asked
	RailCNI   bool   `json:"ours"`                // it is a program of rail-cni
}

// Kubelet are the facts of device plugins and resources.
type Kubelet struct {
	// Allocatable are the numbers of allocatable RDMA NICs, by the resource's name.
	Allocatable Fact[map[string]int64] `json:"allocatable"`
	// Capacity has what Allocatable has, with the devices that are not healthy.
	Capacity Fact[map[string]int64] `json:"capacity"`
	Pools    Fact[[]Pool]           `json:"pools"` // of the node file
	// Foreign has the signs that a device plugin of another project serves RDMA NICs.
	Foreign Fact[[]string] `json:"foreign"`
	// Labels are the node's labels of Node Feature Discovery.
	Labels Fact[map[string]string] `json:"labels"`
}

// Pool is a device pool.
type Pool struct {
	Resource string   `json:"resource"`
	Kind     string   `json:"kind"` // "shared", "exclusive", "perRail"
	NICs     []string `json:"nics"`
	Count    int64    `json:"count"`          // of devices that it should offer
	UMAD     bool     `json:"umad,omitempty"` // it hands out management devices of InfiniBand ports
}

// Agent are the facts of rail-agent on the node.
type Agent struct {
	Running Fact[bool]   `json:"running"`
	Version Fact[string] `json:"version"`
	NRI     Fact[bool]   `json:"nri"` // it is connected to the runtime
	// Memlock reports whether NRI lets containers of pods with a NIC lock memory without limit.
	Memlock Fact[bool] `json:"memlock"`
	// NotReturned is the number of attachments of dead pods that it could not end.
	NotReturned Fact[int] `json:"notReturned"`
	// Kubeconfig is that of the plugin whereabouts, without a path if the agent does not
	// maintain it.
	Kubeconfig Fact[Kubeconfig] `json:"kubeconfig"`
}

// Kubeconfig is the kubeconfig by which the plugin whereabouts reaches the API server.
type Kubeconfig struct {
	Path    string `json:"path,omitempty"`
	Refused string `json:"refused,omitempty"` // why no plugin reaches the server by it
}
