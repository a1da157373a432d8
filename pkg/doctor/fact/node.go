package fact

import (
	"fmt"
	"time"
)

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

// Absent reports whether it is known that the agent does not run. The rule AGENT-DOWN reports this,
// so other rules leave such an agent out.
func (a *Agent) Absent() bool { return a.Running.OK() && !a.Running.Value }

// Object names the attachment in findings.
func (a *Attachment) Object() string {
	if a.Pod == "" {
		return fmt.Sprintf("container %.13s", a.ContainerID)
	}
	return "pod " + a.Pod
}
