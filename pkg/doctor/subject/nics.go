package subject

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// EachNIC calls do for each NIC of the node.
func EachNIC(f *fact.Facts, r *rule.Report, do func(*fact.NIC)) {
	if f.NICs == nil {
		return
	}
	list, _ := rule.Read(r, "nics", f.NICs.List)
	for i := range list {
		do(&list[i])
	}
}

// EachRail calls do for each NIC that pods may hold (see [NICsForPods]).
func EachRail(f *fact.Facts, r *rule.Report, do func(*fact.NIC)) {
	EachNIC(f, r, func(n *fact.NIC) {
		if NICsForPods(f, r)[n] {
			do(n)
		}
	})
}

// forPodsKey is the key of [NICsForPods] in what rules share.
type forPodsKey struct{}

// NICsForPods returns true for each NIC that pods may hold. Rules do not judge the other NICs of
// the node. Pods may hold a NIC that has a rail, that is lent, or that has a child interface. If no
// NIC of the node has a rail, pods may also hold the NICs that networks and device pools name. If
// these name no NIC either, pods may hold all NICs with RDMA except uplinks. Without this guess, a
// node without a node file would always count as healthy.
func NICsForPods(f *fact.Facts, r *rule.Report) map[*fact.NIC]bool {
	return rule.Once(r, forPodsKey{}, func() map[*fact.NIC]bool {
		named := map[*fact.NIC]bool{}
		if WithoutRails(f) {
			named = NamedNICs(f, r)
		}
		forPods := map[*fact.NIC]bool{}
		for _, n := range f.ListNICs() {
			guessed := WithoutRails(f) && len(named) == 0 && n.IsRDMA() && !n.IsUplink()
			forPods[n] = n.Rail != nil || n.Holder != "" || n.Children > 0 || named[n] || guessed
		}
		return forPods
	})
}

// WithoutRails reports whether it is known that no NIC of the node has a rail. This is not known if
// the node file is damaged.
func WithoutRails(f *fact.Facts) bool {
	damaged := false
	EachConfig(f, &rule.Report{}, fact.NodeFile, func(c *fact.Config) {
		_, err := nodefile.Parse([]byte(c.Text))
		damaged = damaged || err != nil
	})
	return !damaged && f.NICs != nil && f.NICs.List.OK() && !slices.ContainsFunc(f.ListNICs(), func(n *fact.NIC) bool { return n.Rail != nil })
}

// NamedNICs returns the NICs of the node that its networks and device pools name.
func NamedNICs(f *fact.Facts, r *rule.Report) map[*fact.NIC]bool {
	names := map[string]bool{}
	quiet := r.Quiet() // missing facts are noted by the rules that need them, not here
	EachPlugin(f, quiet, func(_ *network.Network, p *network.Plugin) { names[p.Selected()] = true })
	if f.Kubelet != nil {
		for _, p := range f.Kubelet.Pools.Value {
			for _, name := range p.NICs {
				names[name] = true
			}
		}
	}
	delete(names, "")
	found := map[*fact.NIC]bool{}
	for _, n := range f.ListNICs() {
		if names[n.Name] || names[n.PCI] || slices.ContainsFunc(n.AltNames, func(name string) bool { return names[name] }) {
			found[n] = true
		}
	}
	return found
}

// EachPort calls do for each port of the RDMA devices of each NIC that pods may hold.
func EachPort(f *fact.Facts, r *rule.Report, do func(*fact.NIC, *fact.Port)) {
	EachRail(f, r, func(n *fact.NIC) {
		ports, _ := rule.Read(r, n.Label()+" ports", n.Ports)
		for i := range ports {
			r.Within(ports[i].Name(), func() { do(n, &ports[i]) })
		}
	})
}

// NamesByRail returns the names of the NICs of each rail.
func NamesByRail(f *fact.Facts, r *rule.Report) map[int][]string {
	byRail := map[int][]string{}
	EachNIC(f, r, func(n *fact.NIC) {
		if n.Rail != nil {
			byRail[*n.Rail] = append(byRail[*n.Rail], n.Label())
		}
	})
	return byRail
}
