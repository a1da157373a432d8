package doctor

import (
	"encoding/json"
	"reflect"
	"slices"
)

// Pod has the facts about a pod that holds a NIC.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Containers are the pod's running containers.
	Containers Fact[[]Container] `json:"containers"`
	Interfaces Fact[[]Interface] `json:"interfaces"`
	// Devices are the ports of the RDMA devices that are visible in the pod's netns.
	Devices Fact[[]Port] `json:"devices"`
	// GPUs are the PCI addresses of the GPUs that the pod's containers have.
	GPUs Fact[[]string] `json:"gpus"`
	// Status is Multus' annotation network-status, as JSON.
	Status Fact[string] `json:"networkStatus"`
}

// Object returns the object of findings about the pod.
func (p *Pod) Object() string { return "pod " + p.Namespace + "/" + p.Name }

// Container is a container of a pod.
type Container struct {
	Name         string            `json:"name"`
	Memlock      Memlock           `json:"memlock"`
	UID          int               `json:"uid"`                   // the user of the container's first process
	Capabilities uint64            `json:"capabilities"`          // the effective capabilities of the first process
	Permitted    uint64            `json:"permittedCapabilities"` // the bounding set: the capabilities that files in the image could have
	Env          map[string]string `json:"env,omitempty"`         // only the variables of NCCL, UCX, NVSHMEM, GLOO and rail-cni
	CharDevices  []string          `json:"charDevices,omitempty"` // the paths below /dev/infiniband
}

// Interface is an interface of a pod.
type Interface struct {
	Name    string `json:"name"`
	NIC     string `json:"nic,omitempty"` // the NIC of the host that was lent as this interface, or on which this interface lies
	Rail    *int   `json:"rail,omitempty"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	// RDMA has the names that the NIC's RDMA devices have in the pod.
	RDMA      []string `json:"rdma,omitempty"`
	MTU       int      `json:"mtu"`
	Addresses []string `json:"addresses,omitempty"` // with prefix lengths
	// ARPIgnore and RPFilter are the effective values: the kernel uses the larger of the
	// interface's value and the value of "all".
	ARPIgnore int `json:"arpIgnore"`
	RPFilter  int `json:"rpFilter"`
}

// Configs has the configurations that plugins read. Each configuration has the text that its author
// wrote.
type Configs struct {
	// Files are the node file and the configurations of device plugins that the node file names.
	Files Fact[[]Config] `json:"files"`
	// NADs are the NetworkAttachmentDefinitions of the cluster. On a machine without a cluster this
	// fact is not read.
	NADs Fact[[]Config] `json:"nads"`
	// Networks are the prefixes that a range of addresses must not overlap. The key names the user
	// of the prefixes: "pods", "services" or "nodes". If a key is missing, its prefixes are not
	// known.
	Networks Fact[map[string][]string] `json:"networks"`
	// Requests has, for each pod ("namespace/name"), the annotation key that the pod uses to ask
	// for networks. If a pod does not have the right key, Requests has the pod's keys that resemble
	// it. Pods without any such key and pods that have ended are left out.
	Requests Fact[map[string][]string] `json:"requests"`
}

// ConfigKind is the kind of a configuration.
type ConfigKind string

// These are the kinds of configurations.
const (
	NADConfig    ConfigKind = "NetworkAttachmentDefinition" // Text is spec.config
	NodeFile     ConfigKind = "node file"
	SharedConfig ConfigKind = "k8s-rdma-shared-dev-plugin"
	SRIOVConfig  ConfigKind = "sriov-network-device-plugin"
)

// Config is a configuration.
type Config struct {
	Kind   ConfigKind `json:"kind"`
	Name   string     `json:"name"`             // "namespace/name" for a NAD, otherwise the path of the file
	Source string     `json:"source,omitempty"` // the file, and the document in it
	Text   string     `json:"text"`
	// Resource is the value of the annotation k8s.v1.cni.cncf.io/resourceName of a NAD.
	Resource string `json:"resource,omitempty"`
}

// Cluster has the facts about all nodes of a cluster and about objects of its API server.
type Cluster struct {
	Nodes []*Facts `json:"nodes"`
	// Silent has the nodes whose facts could not be read, each with the reason.
	Silent Fact[map[string]string] `json:"silent"`
	// Leases are the addresses that are allocated in the pools.
	Leases Fact[[]Lease] `json:"leases"`
	// Pods are the cluster's pods that have not ended, as "namespace/name".
	Pods Fact[[]string] `json:"pods"`
	// NADs, Networks and Requests have the same meaning as in [Configs], and apply to every node. A
	// JSON document has them only here, not in each node.
	NADs     Fact[[]Config]            `json:"nads"`
	Networks Fact[map[string][]string] `json:"networks"`
	Requests Fact[map[string][]string] `json:"requests"`
}

// MarshalJSON returns c as JSON. It leaves a fact out of a node's [Configs] if the cluster has the
// same fact.
func (c *Cluster) MarshalJSON() ([]byte, error) {
	type plain Cluster
	lean := plain(*c)
	lean.Nodes = slices.Clone(c.Nodes)
	for i, n := range lean.Nodes {
		if n == nil || n.Configs == nil {
			continue
		}
		node, configs := *n, *n.Configs
		if reflect.DeepEqual(configs.NADs, c.NADs) { // fast: for the same slice, DeepEqual does not compare the elements
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

// share copies NADs, Networks and Requests of the cluster to each node that does not have them.
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

// Lease is an address that a pool has allocated for a pod.
type Lease struct {
	Pool      string `json:"pool"`
	Address   string `json:"address"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
}
