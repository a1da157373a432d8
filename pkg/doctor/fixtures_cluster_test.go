package doctor

import (
	"encoding/json"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// clusterNodes is the number of nodes of the healthy cluster.
const clusterNodes = 3

// healthyCluster makes f the facts of a cluster of nodes that are like this node.
func healthyCluster(f *fact.Facts) {
	text, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	c := &fact.Cluster{Silent: fact.Known(map[string]string{}, "API server")}
	var pods []string
	var leases []fact.Lease
	for i := range clusterNodes {
		n := &fact.Facts{}
		if err := json.Unmarshal(text, n); err != nil {
			panic(err)
		}
		n.Node, n.Configs = fmt.Sprintf("node-%d", i), nil
		host := 10*i + 1
		for k := range n.NICs.List.Value {
			if nic(n, k).Addresses.Value != nil {
				nic(n, k).Addresses.Value = []string{fmt.Sprintf("172.31.%d.%d/24", k, host)}
			}
		}
		pod(n).Name = fmt.Sprintf("trainer-%d", i)
		pods = append(pods, "default/"+pod(n).Name)
		for k := 1; k < len(pod(n).Interfaces.Value); k++ {
			address := fmt.Sprintf("172.31.%d.%d/24", k-1, host+1)
			rail(n, k).Addresses = []string{address}
			leases = append(leases, fact.Lease{Pool: fmt.Sprintf("172.31.%d.0-24", k-1), Address: address, Pod: pods[i], IfName: rail(n, k).Name})
		}
		c.Nodes = append(c.Nodes, n)
	}
	c.Leases, c.Pods = fact.Known(leases, "API server"), fact.Known(pods, "API server")
	f.Cluster = c
}

// at returns a node of the cluster.
func at(f *fact.Facts, i int) *fact.Facts { return f.Cluster.Nodes[i] }

func init() {
	add("CLUSTER-SILENT", fixture{
		fires:   func(f *fact.Facts) { f.Cluster.Silent.Value["node-9"] = "the agent does not answer" },
		missing: func(f *fact.Facts) { away(&f.Cluster.Silent) },
	})
	add("CLUSTER-MODE", fixture{
		fires:   func(f *fact.Facts) { at(f, 1).Host.RDMAMode.Value = "exclusive" },
		missing: func(f *fact.Facts) { away(&at(f, 1).Host.RDMAMode) },
	})
	add("VER-SKEW", fixture{
		fires:   func(f *fact.Facts) { at(f, 1).CNI.Multus.Value = "v4.1.0" },
		missing: func(f *fact.Facts) { away(&at(f, 1).Agent.Version) },
	})
	add("CLUSTER-FIRMWARE", fixture{
		fires:   func(f *fact.Facts) { nic(at(f, 1), 4).Firmware.Value = "28.42.1000" },
		missing: func(f *fact.Facts) { away(&nic(at(f, 1), 4).Firmware) },
	})
	add("CLUSTER-MTU", fixture{
		fires:   func(f *fact.Facts) { nic(at(f, 1), 4).MTU.Value = 1500 },
		missing: func(f *fact.Facts) { away(&nic(at(f, 1), 4).MTU) },
	})
	add("CLUSTER-SPEED", fixture{
		fires:   func(f *fact.Facts) { nic(at(f, 1), 4).Mbps.Value = 200_000 },
		missing: func(f *fact.Facts) { away(&nic(at(f, 1), 4).Mbps) },
	})
	add("RAIL-ABSENT", fixture{
		fires:   func(f *fact.Facts) { at(f, 1).NICs.List.Value = at(f, 1).NICs.List.Value[:7] },
		missing: func(f *fact.Facts) { away(&at(f, 1).NICs.List) },
	})
	add("RAIL-SWAP", fixture{
		fires: func(f *fact.Facts) {
			a, b := nic(at(f, 1), 4), nic(at(f, 1), 5)
			a.Addresses, b.Addresses = b.Addresses, a.Addresses
		},
		missing: func(f *fact.Facts) { away(&nic(at(f, 1), 4).Addresses) },
	})
	add("RAIL-SUBNET", fixture{
		fires:   func(f *fact.Facts) { nic(at(f, 1), 4).Addresses.Value = []string{"172.31.99.1/24"} },
		missing: func(f *fact.Facts) { away(&at(f, 1).NICs.Fabric) },
	})
	add("IPAM-DUP", fixture{
		fires:   func(f *fact.Facts) { rail(at(f, 1), 1).Addresses = rail(at(f, 0), 1).Addresses },
		missing: func(f *fact.Facts) { away(&pod(at(f, 1)).Interfaces) },
	})
	add("IPAM-LEASE", fixture{
		fires:   func(f *fact.Facts) { f.Cluster.Pods.Value = f.Cluster.Pods.Value[1:] },
		missing: func(f *fact.Facts) { away(&f.Cluster.Pods) },
	})
}
