package configs

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// mastersForConfigs returns the interfaces that a network can name, by each of their names: the
// NICs, and the other interfaces of the host (bonds, VLANs). A macvlan can lie on such an
// interface, and host-device can lend it. ok reports whether there are any.
func mastersForConfigs(f *fact.Facts, r *rule.Report) (byName map[string][]*fact.NIC, ok bool) {
	if byName, ok = nicsForConfigs(f, r); !ok && f.NICs != nil && !f.NICs.List.OK() {
		return nil, false
	}
	add := func(n *fact.Facts) {
		if n.NICs == nil || !n.NICs.Others.Asked() {
			return
		}
		others, _ := rule.Read(r, "other interfaces", n.NICs.Others)
		for i := range others {
			o := &others[i]
			nic := &fact.NIC{Name: o.Name, AltNames: o.AltNames, MTU: fact.Known(o.MTU, n.NICs.Others.Source)}
			for _, name := range append([]string{o.Name}, o.AltNames...) {
				byName[name] = append(byName[name], nic)
			}
		}
	}
	add(f)
	if f.NICs == nil {
		subject.EachNode(f, add)
	}
	return byName, len(byName) > 0
}

// nicsForConfigs returns the NICs that configurations can name, by each of their names. ok reports
// whether there are any. A missing fact is noted in r.
func nicsForConfigs(f *fact.Facts, r *rule.Report) (byName map[string][]*fact.NIC, ok bool) {
	if f.NICs != nil {
		if _, ok := rule.Read(r, "nics", f.NICs.List); !ok {
			return nil, false
		}
	}
	byName = map[string][]*fact.NIC{}
	for _, n := range subject.KnownNICs(f) {
		names := map[string]bool{n.Name: true, n.PCI: true}
		for _, a := range n.AltNames {
			names[a] = true
		}
		delete(names, "")
		for name := range names {
			byName[name] = append(byName[name], n)
		}
	}
	return byName, len(byName) > 0
}

// eachIPoIBPort calls do for each ipoib plugin and each InfiniBand port of the plugin's master.
func eachIPoIBPort(f *fact.Facts, r *rule.Report, do func(*network.Network, *network.Plugin, *fact.NIC, *fact.Port)) {
	byName, ok := nicsForConfigs(f, r)
	if !ok {
		return
	}
	subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
		if p.IPoIB == nil {
			return
		}
		for _, nic := range byName[p.IPoIB.Master] {
			ports, _ := rule.Read(r, nic.Label()+" ports", nic.Ports)
			for i := range ports {
				if ports[i].LinkLayer == fact.InfiniBand {
					do(n, p, nic, &ports[i])
				}
			}
		}
	})
}

func checkSameDevice(f *fact.Facts, r *rule.Report) {
	byName := map[string][]*fact.NIC{}
	if f.NICs != nil || f.Cluster != nil {
		byName, _ = mastersForConfigs(f, r)
	}
	type user struct {
		object, namespace string
		lends             bool
	}
	users := map[string][]user{}
	subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
		name := p.Selected()
		if name == "" {
			return
		}
		if nics := byName[name]; len(nics) > 0 { // one NIC can have several names
			name = cmp.Or(nics[0].PCI, nics[0].Name)
		}
		r.Judged()
		namespace, _, _ := strings.Cut(n.Config.Name, "/")
		users[name] = append(users[name], user{n.Config.Object(), namespace, p.HostDevice != nil})
	})
	for _, name := range slices.Sorted(maps.Keys(users)) {
		lender := map[string]string{} // by namespace
		first := ""
		for _, u := range users[name] {
			if !u.lends {
				continue
			}
			if other := lender[u.namespace]; other != "" {
				r.Find(u.object, "it lends %s, which %s also lends", name, other)
			}
			lender[u.namespace], first = u.object, cmp.Or(first, u.object)
		}
		for _, u := range users[name] {
			if first != "" && !u.lends {
				r.Find(u.object, "its child interfaces lie on %s, which %s lends", name, first)
			}
		}
	}
}

func checkSelectedNICs(f *fact.Facts, r *rule.Report) {
	byName, have := map[string][]*fact.NIC(nil), false
	if f.NICs != nil || f.Cluster != nil {
		if byName, have = mastersForConfigs(f, r); !have && f.NICs != nil && !f.NICs.List.OK() {
			return
		}
	}
	rails := map[int]bool{}
	for _, n := range subject.KnownNICs(f) {
		if n.Rail != nil {
			rails[*n.Rail] = true
		}
	}
	subject.EachPlugin(f, r, func(n *network.Network, p *network.Plugin) {
		if p.SelectsNone() && n.Config.Resource == "" {
			r.Find(n.Config.Object(), "%s selects no NIC: it names neither a device nor a rail, and the NetworkAttachmentDefinition names no resource", p.Type)
			return
		}
		rail := p.Rail()
		if p.TakesNIC() {
			r.Judged()
		}
		if name := p.Selected(); have && name != "" && byName[name] == nil {
			near := ""
			for _, other := range slices.Sorted(maps.Keys(byName)) {
				if strings.EqualFold(other, name) {
					near = "; there is " + other
				}
			}
			r.Find(n.Config.Object(), "no NIC is called %s%s", name, near)
		}
		if have && rail.Number != nil && !rails[*rail.Number] {
			r.Find(n.Config.Object(), "no NIC has the rail %d", *rail.Number)
		}
	})
}

func checkIfNames(f *fact.Facts, r *rule.Report) {
	if f.NICs == nil && f.Cluster == nil {
		return
	}
	byName, ok := nicsForConfigs(f, r)
	if !ok {
		return
	}
	eachPoolConfig(f, r, func(c *fact.Config, p *resource.PoolConfig) {
		for i := range p.Select {
			for _, name := range p.Select[i].IfNames {
				nics := byName[name]
				r.Judged()
				switch {
				case len(nics) == 0:
					r.Find(c.Object(), "resource %s: no NIC is called %s", p.Name, name)
				case c.Kind == fact.SharedConfig && !slices.ContainsFunc(nics, func(n *fact.NIC) bool { return n.Name == name }):
					r.Find(c.Object(), "resource %s: %s is an alternative name of %s, which k8s-rdma-shared-dev-plugin does not know", p.Name, name, nics[0].Name)
				}
			}
		}
	})
}
