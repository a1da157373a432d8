package doctor

import (
	"encoding/json"
	"reflect"
	"slices"
)

// Pod are the facts of a pod that holds a NIC.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Containers are those that run.
	Containers Fact[[]Container] `json:"containers"`
	Interfaces Fact[[]Interface] `json:"interfaces"`
	// Devices are the RDMA devices that the pod's netns sees.
	Devices Fact[[]Port] `json:"devices"`
	// GPUs are the PCI addresses of the GPUs that its containers have.
	GPUs Fact[[]string] `json:"gpus"`
	// Status is Multus' annotation network-status, as JSON.
	Status Fact[string] `json:"networkStatus"`
}

// Object names the pod in findings.
func (p *Pod) Object() string { return "pod " + p.Namespace + "/" + p.Name }

// Container is a container of a pod.
type Container struct {
	Name         string            `json:"name"`
	Memlock      Memlock           `json:"memlock"`
	UID          int               `json:"uid"`                   // of its first process
	Capabilities uint64            `json:"capabilities"`          // effective ones of its first process
	Permitted    uint64            `json:"permittedCapabilities"` // that the image's files could have: the bounding set
	Env          map[string]string `json:"env,omitempty"`         // those of NCCL, UCX, NVSHMEM, GLOO and rail-cni
	CharDevices  []string          `json:"charDevices,omitempty"` // /dev/infiniband
}

// Interface is an interface of a pod.
type Interface struct {
	Name    string `json:"name"`
	NIC     string `json:"nic,omitempty"` // of the host, if it is lent or a macvlan on it
	Rail    *int   `json:"rail,omitempty"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	// RDMA has the names that its NIC's RDMA devices have in the pod.
	RDMA      []string `json:"rdma,omitempty"`
	MTU       int      `json:"mtu"`
	Addresses []string `json:"addresses,omitempty"` // with prefix lengths
	// ARPIgnore and RPFilter are the values in force: the larger of the interface's and "all"'s.
	ARPIgnore int `json:"arpIgnore"`
	RPFilter  int `json:"rpFilter"`
}

// Configs are configurations that plugins read, each as its author wrote it.
type Configs struct {
	// Files are the node file, and the configurations of device plugins that it names.
	Files Fact[[]Config] `json:"files"`
	// NADs are the NetworkAttachmentDefinitions of the cluster. A machine without a cluster has
	// no such fact.
	NADs Fact[[]Config] `json:"nads"`
	// Networks are prefixes that a range of addresses must not overlap, by what uses them:
	// "pods", "services", "nodes". A user without prefixes is one whose prefixes are not known.
	Networks Fact[map[string][]string] `json:"networks"`
	// Requests are, by the pod ("namespace/name"), the key of the annotation by which it asks for
	// networks, or else the keys that resemble it. Pods without any, and those that have ended, are
	// left out.
	Requests Fact[map[string][]string] `json:"requests"`
}

// ConfigKind is the kind of a configuration.
type ConfigKind string

// The kinds.
const (
	NADConfig    ConfigKind = "NetworkAttachmentDefinition" // Text is its spec.config
	NodeFile     ConfigKind = "node file"
	SharedConfig ConfigKind = "k8s-rdma-shared-dev-plugin"
	SRIOVConfig  ConfigKind = "sriov-network-device-plugin"
)

// Config is a configuration.
type Config struct {
	Kind   ConfigKind `json:"kind"`
	Name   string     `json:"name"`             // namespace/name of a NAD, else the path
	Source string     `json:"source,omitempty"` // file and document
	Text   string     `json:"text"`
	// Resource is the annotation k8s.v1.cni.cncf.io/resourceName of a NAD.
	Resource string `json:"resource,omitempty"`
}

// Cluster are the facts of the nodes of a cluster together, and of its API objects.
type Cluster struct {
	Nodes []*Facts `json:"nodes"`
	// Silent are the nodes whose facts could not be had, with the reasons.
	Silent Fact[map[string]string] `json:"silent"`
	// Leases are the addresses of the pools.
	Leases Fact[[]Lease] `json:"leases"`
	// Pods are the cluster's pods that have not ended, "namespace/name".
	Pods Fact[[]string] `json:"pods"`
	// NADs, Networks and Requests are those of each node's [Configs]. A document has them only here.
	NADs     Fact[[]Config]            `json:"nads"`
	Networks Fact[map[string][]string] `json:"networks"`
	Requests Fact[map[string][]string] `json:"requests"`
}

// MarshalJSON leaves out of the nodes what the cluster has.
func (c *Cluster) MarshalJSON() ([]byte, error) {
	type plain Cluster
	lean := plain(*c)
	lean.Nodes = slices.Clone(c.Nodes)
	for i, n := range lean.Nodes {
		if n == nil || n.Configs == nil {
			continue
		}
		node, configs := *n, *n.Configs
		if reflect.DeepEqual(configs.NADs, c.NADs) { // with the same slice it does not look into it
			configs.NADs = Fact[[]Config]{}
		}
		if reflect.DeepEqual(configs.Networks, c.Networks) {
			configs.Networks = Fact[map[string][]string]{}
		}
		if reflect.DeepEqual(configs.Requests, c.Requests) {
			configs.Requests = Fact[map[string][]string]{}
		}
		node.Configs = &configs
		lean.Nodes[i] = &node
	}
	return json.Marshal(&lean)
}

// share adds what the cluster has to the nodes that have none of their own.
func (c *Cluster) share() {
	for _, n := range c.Nodes {
		if n == nil || !c.NADs.asked() && !c.Networks.asked() && !c.Requests.asked() {
			continue
		}
		if n.Configs == nil {
			n.Configs = &Configs{}
		}
		if !n.Configs.NADs.asked() {
			n.Configs.NADs = c.NADs
		}
		if !n.Configs.Networks.asked() {
			n.Configs.Networks = c.Networks
		}
		if !n.Configs.Requests.asked() {
			n.Configs.Requests = c.Requests
		}
	}
}

// Lease is an address that a pool has for a pod.
type Lease struct {
	Pool      string `json:"pool"`
	Address   string `json:"address"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
}
