package subject

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// KnownNICs returns the NICs of the node. If f has no NICs itself, it returns the NICs of all nodes
// of the cluster.
func KnownNICs(f *fact.Facts) []*fact.NIC {
	var all []*fact.NIC
	add := func(n *fact.Facts) {
		if n.NICs != nil && n.NICs.List.OK() {
			for i := range n.NICs.List.Value {
				all = append(all, &n.NICs.List.Value[i])
			}
		}
	}
	add(f)
	if all == nil {
		EachNode(f, add)
	}
	return all
}

// EachNode calls do for each node of the cluster whose facts are known.
func EachNode(f *fact.Facts, do func(*fact.Facts)) {
	if f.Cluster == nil {
		return
	}
	for _, n := range f.Cluster.Nodes {
		if n != nil {
			do(n)
		}
	}
}

// MajorMinor returns the first two numbers of a release such as "6.1.0-18-amd64".
func MajorMinor(release string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2
}
