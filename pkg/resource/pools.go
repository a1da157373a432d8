package resource

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Pools returns the pools of the node, in the order of their configurations. The NICs in a pool are
// in the order of their rails, and then of their PCI addresses. rails has the rails of the NICs by
// PCI address, see [Rails.Assign]. A pool without a NIC is returned too, but there is no pool for a
// rail that has no NIC. A nil *Config has no pools.
func (c *Config) Pools(nics []NIC, rails map[string]int) ([]Pool, []Problem) {
	if c == nil {
		return nil, nil
	}
	e := &evaluation{
		nics: slices.Clone(nics), rails: rails, allowOverlap: c.AllowOverlap,
		problems: slices.Clone(c.Warnings), offers: map[string][]offer{},
	}
	slices.SortStableFunc(e.nics, func(a, b NIC) int {
		return cmp.Or(cmp.Compare(e.order(&a), e.order(&b)), comparePCI(a.PCI, b.PCI), slices.Compare(a.Names, b.Names))
	})
	var pools []Pool
	for i := range c.PoolConfigs {
		pools = append(pools, e.evaluate(&c.PoolConfigs[i])...)
	}
	return pools, e.problems
}

// IDs returns the IDs of the pool's devices. The IDs of a shared pool are "0" to "n-1". The IDs of
// another pool are the PCI addresses of its NICs.
func (p *Pool) IDs() []string {
	var ids []string
	if p.Mode == Shared {
		for i := range p.Devices {
			ids = append(ids, strconv.Itoa(i))
		}
		return ids
	}
	for i := range p.NICs {
		ids = append(ids, p.NICs[i].PCI)
	}
	return ids
}

// CharDevices returns the paths of the char devices that a container gets with the NIC. A program
// that has the umad device of an InfiniBand port can send management packets into the fabric, and
// can take down ports of other nodes, so only a pool with UMAD hands it out. A program that has the
// issm device can be a subnet manager, so no pool hands it out. On Ethernet both devices have no
// effect. A NIC of unknown link type is treated as InfiniBand.
func (p *Pool) CharDevices(n *NIC) []string {
	if n.LinkType == Ethernet {
		return n.CharDevices
	}
	return slices.DeleteFunc(slices.Clone(n.CharDevices), func(path string) bool {
		return isDevice(path, "issm") || isDevice(path, "umad") && !p.UMAD
	})
}

// ManagesFabric reports whether path is a char device with which a program can manage an InfiniBand
// fabric.
func ManagesFabric(path string) bool { return isDevice(path, "umad") || isDevice(path, "issm") }

// isDevice reports whether path is a char device of this kind. For example, "/dev/infiniband/umad3"
// has the kind "umad".
func isDevice(path, kind string) bool { return strings.HasPrefix(filepath.Base(path), kind) }

// evaluation applies the configurations of pools, one after another.
type evaluation struct {
	nics         []NIC // in the order of rails and PCI addresses
	rails        map[string]int
	allowOverlap bool
	offers       map[string][]offer // by PCI address, or by label if a NIC has no PCI address
	problems     []Problem
}

// offer records that a NIC is in a pool.
type offer struct {
	resource string
	shared   bool
}

// order returns a number for sorting: the NIC's rail. NICs without a rail come last.
func (e *evaluation) order(n *NIC) int {
	if rail, ok := e.rails[n.PCI]; ok && n.PCI != "" {
		return rail
	}
	return MaxRail + 1
}

func (e *evaluation) problem(p *PoolConfig, reason Reason, format string, args ...any) {
	e.problems = append(e.problems, Problem{p.Name, reason, fmt.Sprintf("resource %s: ", p.Name) + fmt.Sprintf(format, args...)})
}

func (e *evaluation) evaluate(p *PoolConfig) []Pool {
	selected := e.selected(p)
	if p.Mode == PerRail {
		return e.perRail(p, selected)
	}
	pool := Pool{Resource: p.Name, Mode: p.Mode, Topology: p.Topology, UMAD: p.UMAD, AdditionalInfo: p.AdditionalInfo}
	for _, s := range selected {
		if p.Mode == Shared && !s.nic.usesRDMA() {
			e.problem(p, NoRDMA, "%s has no RDMA char devices: it is not in the pool; load the driver's RDMA module, or select other NICs", s.nic.label())
			continue
		}
		if (p.Mode == Shared || e.lendable(p, s)) && e.offer(p, s.nic, p.Name) {
			pool.NICs = append(pool.NICs, *s.nic)
		}
	}
	if p.Mode == Shared && len(pool.NICs) > 0 {
		pool.Devices = p.Max
	}
	return []Pool{pool}
}

// perRail returns a pool for each rail of the selected NICs.
func (e *evaluation) perRail(p *PoolConfig, selected []selection) []Pool {
	var pools []Pool
	var without []string
	railed := false
	for _, s := range selected {
		rail := e.order(s.nic)
		if rail > MaxRail {
			if s.explicit {
				without = append(without, s.nic.label())
			}
			continue
		}
		railed = true
		if !e.lendable(p, s) {
			continue
		}
		name := p.Name + railSuffix + strconv.Itoa(rail)
		// The NICs are in the order of their rails.
		if last := len(pools) - 1; last >= 0 && *pools[last].Rail == rail {
			e.problem(p, Ambiguous, "%s and %s are both rail %d: %s has only the first; give the NICs different rails", pools[last].NICs[0].label(), s.nic.label(), rail, name)
			continue
		}
		if e.offer(p, s.nic, name) {
			pools = append(pools, Pool{Resource: name, Mode: Exclusive, NICs: []NIC{*s.nic}, Rail: &rail, Topology: p.Topology, UMAD: p.UMAD, AdditionalInfo: p.AdditionalInfo})
		}
	}
	switch {
	case len(selected) > 0 && !railed:
		e.problem(p, NoRail, `none of the %d selected NICs has a rail, so no rail has a pool; add "rails" to the node file ("railctl rails discover" proposes them)`, len(selected))
	case len(without) > 0:
		e.problem(p, NoRail, `%s: no rail; add each NIC to "rails" in the node file`, strings.Join(without, ", "))
	}
	return pools
}

// selection is a selected NIC. It is explicit if the selector names this NIC.
type selection struct {
	nic      *NIC
	explicit bool
}

// selected returns the NICs that the pool's selectors match, in order. It reports selectors and
// names that match no NIC.
func (e *evaluation) selected(p *PoolConfig) []selection {
	found := make([]*selection, len(e.nics))
	for i := range p.Select {
		s := &p.Select[i]
		named := s.named()
		var matched []*NIC
		for j := range e.nics {
			n := &e.nics[j]
			if !s.matches(n, e.rails) {
				continue
			}
			matched = append(matched, n)
			if found[j] == nil {
				found[j] = &selection{nic: n}
			}
			found[j].explicit = found[j].explicit || len(named) > 0
		}
		if len(matched) == 0 {
			e.problem(p, NothingSelected, `no NIC of this node is selected by %s; correct it ("railctl nics" lists the NICs)`, s)
			continue
		}
		for _, l := range named {
			e.missing(p, l, matched)
		}
	}
	var all []selection
	for _, s := range found {
		if s != nil {
			all = append(all, *s)
		}
	}
	return all
}

// missing reports the values in the list l that no selected NIC has.
func (e *evaluation) missing(p *PoolConfig, l list, selected []*NIC) {
	for _, v := range l.values {
		if slices.ContainsFunc(selected, func(n *NIC) bool { return l.has(n, v, e.rails) }) {
			continue
		}
		if slices.ContainsFunc(e.nics, func(n NIC) bool { return l.has(&n, v, e.rails) }) {
			e.problem(p, NothingSelected, "%s %q is a NIC that the other keys of the selector exclude; correct one of the keys", l.key, v)
			continue
		}
		e.problem(p, NothingSelected, `%s %q is not a NIC of this node; correct it ("railctl nics" lists the NICs)`, l.key, v)
	}
}

// lendable reports whether the NIC may be in an exclusive pool. If the selector names the NIC and
// the NIC may not be in the pool, lendable adds the reason to the problems.
func (e *evaluation) lendable(p *PoolConfig, s selection) bool {
	switch {
	case s.nic.PCI == "":
		if s.explicit {
			e.problem(p, NoPCI, "%s has no PCI function, by which exclusive devices are named: it is not in the pool; select other NICs, or use a shared pool", s.nic.label())
		}
		return false
	case s.nic.Protected != "":
		if s.explicit {
			e.problem(p, Protected, "%s may not be lent: %s; it is not in the pool until that changes", s.nic.label(), s.nic.Protected)
		}
		return false
	}
	return true
}

// offer notes that the NIC is in a pool, and reports whether the NIC may be in that pool. A NIC of
// an exclusive pool may not be in another pool, and may be in the exclusive pool only once.
func (e *evaluation) offer(p *PoolConfig, n *NIC, resource string) bool {
	key := cmp.Or(n.PCI, n.label())
	shared := p.Mode == Shared
	for _, other := range e.offers[key] {
		switch {
		case other.resource == resource && !shared:
			e.problem(p, Overlap, "several netdevs have the PCI function of %s: the pool has that function only once; select one of the netdevs", n.label())
			return false
		case other.resource != resource && !e.allowOverlap && !(other.shared && shared):
			e.problem(p, Overlap, "%s is in the pool %s already: it is not in this pool; narrow one of the selectors, or set allowOverlap: true", n.label(), other.resource)
			return false
		}
	}
	e.offers[key] = append(e.offers[key], offer{resource, shared})
	return true
}
