package cluster

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func TestOneInterfaceWithAnAddressTwiceIsNoDuplicate(t *testing.T) {
	rail := 0
	node := func(name string, addresses ...string) *fact.Facts {
		i := fact.Interface{Name: "net1", NIC: "ens1", Rail: &rail, Addresses: addresses}
		return &fact.Facts{Node: name, Pods: []fact.Pod{{Namespace: "default", Name: "p-" + name, Interfaces: fact.Known([]fact.Interface{i}, "test")}}}
	}
	f := &fact.Facts{Cluster: &fact.Cluster{Nodes: []*fact.Facts{node("a", "10.0.0.1/24", "10.0.0.1/32"), node("b", "10.0.0.2/24")}}}
	if have := ruletest.Evidence(t, Rules(), f, "IPAM-DUP"); have != "" {
		t.Error(have)
	}
	f.Cluster.Nodes[1].Pods[0].Interfaces.Value[0].Addresses[0] = "10.0.0.1/24"
	if have := ruletest.Evidence(t, Rules(), f, "IPAM-DUP"); !strings.Contains(have, "p-b") {
		t.Error(have)
	}
	for _, n := range f.Cluster.Nodes { // NICs of other names are of other networks
		n.Pods[0].Interfaces.Value[0].Rail = nil
	}
	f.Cluster.Nodes[1].Pods[0].Interfaces.Value[0].NIC = "ens2"
	if have := ruletest.Evidence(t, Rules(), f, "IPAM-DUP"); have != "" {
		t.Error(have)
	}
}
