package fact

import (
	"encoding/json"
	"reflect"
	"slices"
)

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
		if n == nil || !c.NADs.Asked() && !c.Networks.Asked() && !c.Requests.Asked() {
			continue
		}
		if n.Configs == nil {
			n.Configs = &Configs{}
		}
		if !n.Configs.NADs.Asked() {
			n.Configs.NADs = c.NADs
		}
		if !n.Configs.Networks.Asked() {
			n.Configs.Networks = c.Networks
		}
		if !n.Configs.Requests.Asked() {
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
