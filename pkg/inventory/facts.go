package inventory

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

func constant(ip netip.Addr) func() (netip.Addr, error) {
	return func() (netip.Addr, error) { return ip, nil }
}

// ports adds the ports of RDMA devices that are on the host. It leaves out the ports that, by its
// record, a lent NIC has.
func (m *machine) ports(list *NICList, held *held, links []*link.Link) error {
	if !m.host.HasRDMACore() {
		return nil
	}
	host := held.Host()
	devices, err := host.Devices()
	if err != nil {
		return err
	}
	pairs, err := netdevs.PairsOf(host.Core, devices, links)
	for _, p := range pairs {
		if p.Child || list.hasLent(p) { // a child is not a NIC
			continue
		}
		if n := list.ofPort(p); n != nil {
			n.Ports = append(n.Ports, Port{Device: p.Device, Port: p.Port, State: p.State.String()})
		}
	}
	return err
}

// hasLent reports whether, by its record, a lent NIC has the port.
func (list *NICList) hasLent(p netdevs.Pair) bool {
	return list.first(func(n *NIC) bool {
		return n.Lent != nil && slices.ContainsFunc(n.Ports, func(has Port) bool { return has.Device == p.Device && (has.Port == p.Port || has.Port == 0) })
	}) != nil
}

// ofPort returns the NIC of a port, or nil if the NIC is not listed. The interface that the kernel
// reports for a port is not always enough. For an InfiniBand port the kernel reports no interface.
// For a port of a bond's member it reports the bond. For an Ethernet port whose interface is in
// another netns it reports no interface, and another interface of the same function does not belong
// to that port.
func (list *NICList) ofPort(p netdevs.Pair) *NIC {
	if p.Netdev != "" {
		if n := list.find(p.Netdev, ""); n != nil {
			return n
		}
	}
	matches := func(n *NIC) bool { // the device may belong to this NIC
		if n.Auxiliary != "" {
			return n.Auxiliary == p.Parent
		}
		return n.PCI != "" && n.PCI == p.Parent && !n.Representor
	}
	lent := list.first(func(n *NIC) bool { return matches(n) && n.Lent != nil && len(n.Ports) == 0 })
	onHost := list.first(func(n *NIC) bool { return matches(n) && n.Lent == nil })
	if p.Netdev == "" && p.LinkLayer != "InfiniBand" {
		if lent == nil && onHost != nil && onHost.Name == "" {
			return onHost
		}
		return lent
	}
	return cmp.Or(onHost, lent)
}

// complete adds the facts that sysfs has about the NICs in every namespace, and the GPUs of the
// NICs.
func (m *machine) complete(list *NICList, links []*link.Link) {
	known := map[string]resource.NIC{}
	for i := range list.NICs {
		n := &list.NICs[i]
		if n.Lent == nil || n.PCI == "" || n.Auxiliary != "" {
			continue
		}
		k := resource.NIC{MAC: cmp.Or(n.PermanentMAC, n.MAC), LinkType: n.LinkType, PKey: n.PKey, CharDevices: n.CharDevices}
		if n.Name != "" {
			k.Names = append([]string{n.Name}, n.AltNames...)
		}
		for _, p := range n.Ports {
			if !slices.Contains(k.RDMA, p.Device) {
				k.RDMA = append(k.RDMA, p.Device)
			}
		}
		known[n.PCI] = k
	}
	list.facts = m.host.FactsOf(list.Tree, links, known)
	uuids := m.uuids()
	for i := range list.NICs {
		m.completeOne(list, &list.NICs[i])
		list.NICs[i].addGPUs(list, uuids)
	}
}

// completeOne adds the facts that sysfs has about the function of the NIC.
func (m *machine) completeOne(list *NICList, n *NIC) {
	f := list.factsAt(n.PCI)
	switch {
	case n.Auxiliary != "":
		n.Kind, n.Parent = SF, n.PCI
		if paths := m.host.CharDevices("auxiliary", n.Auxiliary); len(paths) > 0 {
			n.CharDevices = paths
		}
		n.Driver = base(filepath.Join(m.host.Sys, "bus/auxiliary/devices", n.Auxiliary, "driver"))
		if f != nil && len(f.Names) > 0 {
			n.PFName = f.Names[0]
		}
		return
	case f == nil || n.Representor:
		return
	}
	n.ACPIIndex, n.Kind, n.CharDevices = f.ACPIIndex, PF, f.CharDevices
	n.LinkType = cmp.Or(n.LinkType, f.LinkType)
	if n.Parent = m.host.PhysicalFunction(n.PCI); n.Parent != "" {
		number := f.VF
		n.Kind, n.PFName, n.VFNumber = VF, f.PF, &number
	}
}

// factsAt returns the facts about the PCI function, or nil if the function is not that of a NIC.
func (list *NICList) factsAt(pci string) *resource.NIC {
	i := slices.IndexFunc(list.facts, func(f resource.NIC) bool { return f.PCI == pci })
	if i < 0 {
		return nil
	}
	return &list.facts[i]
}

// base returns the last element of the path to which a symbolic link leads, or "" if there is no
// such link.
func base(name string) string {
	target, err := os.Readlink(name)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// noUse is the reason why a network function that is not listed is protected.
const noUse = "it has no interface and no RDMA device here: it has no driver, or another program has moved it to another network namespace"

// protect sets the reason why a NIC may not be lent, for each such NIC on the host.
func (m *machine) protect(list *NICList, held *held, views map[int]*link.View) {
	holders := map[string]string{}
	for i := range held.attachments {
		if r := held.attachments[i].record; r.Loan != nil {
			holders[r.Loan.PCI], holders[r.Loan.Identity.ParentDev] = r.Holder(), r.Holder()
		}
	}
	m.host.Holder = func(device string) string { return holders[device] }
	byName := map[string]*link.View{}
	for _, v := range views {
		byName[v.Link.Name] = v
	}
	for i := range list.NICs {
		if n := &list.NICs[i]; n.Lent == nil {
			n.Protected = m.protected(list, n, byName[n.Name])
		}
	}
	for i := range list.facts {
		f, listed := &list.facts[i], false
		for k := range list.NICs {
			n := &list.NICs[k]
			if n.PCI == f.PCI && n.Auxiliary == "" && !n.Representor {
				f.Protected, listed = cmp.Or(f.Protected, n.Protected), true
			}
		}
		if !listed {
			f.Protected = noUse
		}
	}
}

// uplinks marks the NICs by which a default route of the host leaves. A NIC is also marked if the
// route leaves by a link on that NIC.
func (m *machine) uplinks(list *NICList, links []*link.Link) error {
	routed, err := link.DefaultRouteLinks(m.host.Netns)
	if err != nil {
		return err
	}
	below := withBelow(routed, links)
	for i := range list.NICs {
		n := &list.NICs[i]
		n.Uplink = n.Lent == nil && slices.ContainsFunc(links, func(l *link.Link) bool { return l.Name == n.Name && below[l.Index] })
	}
	return nil
}

// withBelow returns the links with these indexes, and the links below them: the members of a bond
// or a bridge, and the link on which a VLAN lies.
func withBelow(indexes []int, links []*link.Link) map[int]bool {
	found := map[int]bool{}
	var add func(index int)
	add = func(index int) {
		if found[index] {
			return
		}
		found[index] = true
		for _, l := range links {
			switch below := nic.LiesOn(l); {
			case l.Master == index:
				add(l.Index)
			case l.Index == index && below != 0:
				add(below)
			}
		}
	}
	for _, index := range indexes {
		add(index)
	}
	return found
}

// protected returns the reason why no network may lend the NIC, or "" if there is none. v is nil if
// the NIC has no netdev. For a NIC that has just left, protected returns "", because it is not
// known what protects the NIC. An ADD that finds the NIC applies the same guardrails.
func (m *machine) protected(list *NICList, n *NIC, v *link.View) string {
	if v == nil && n.Name != "" {
		list.left = true
		return ""
	}
	var err error
	if v != nil {
		err = m.host.Guard(v, nil)
	}
	if err == nil {
		err = m.host.Permit(m.nicOf(n, v), list.File, nil)
	}
	if err == nil || list.noteLeft(err) {
		return ""
	}
	return failure.Reason(err)
}

// addGPUs adds the node's GPUs.
func (n *NIC) addGPUs(list *NICList, uuids map[string]string) {
	if n.PCI == "" {
		return
	}
	for _, g := range list.GPUs {
		n.GPUs = append(n.GPUs, GPU{PCI: g.Address, UUID: uuids[g.Address], Distance: list.Tree.Distance(n.PCI, g.Address)})
	}
	slices.SortStableFunc(n.GPUs, func(a, b GPU) int { return cmp.Compare(a.Distance, b.Distance) })
}

// uuids returns the UUIDs of NVIDIA's GPUs by PCI address, from the driver's files
// /proc/driver/nvidia/gpus/*/information. The result is empty if that driver is not loaded.
func (m *machine) uuids() map[string]string {
	found := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(m.host.Proc, "driver/nvidia/gpus/*/information")) // the pattern is well-formed
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "GPU UUID" {
				found[strings.ToLower(filepath.Base(filepath.Dir(file)))] = strings.TrimSpace(value)
			}
		}
	}
	return found
}
