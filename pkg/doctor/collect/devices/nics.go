package devices

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// misplaced returns the NICs with a rail that are not in the inventory. Either no driver is bound
// to such a NIC, or its interface is in a network namespace to which no attachment has moved it. A
// NIC whose interface is on the host is not returned. The interface may be missing in the inventory
// because kernels before 5.14 do not report to which NIC an interface belongs, but sysfs lists the
// interfaces of each function.
func misplaced(sys string, list *inventory.NICList) []inventory.NIC {
	var found []inventory.NIC
	for _, pci := range slices.Sorted(maps.Keys(list.Rails)) {
		d := list.Tree.ByAddress(pci)
		if d == nil || slices.ContainsFunc(list.NICs, func(n inventory.NIC) bool { return n.PCI == pci }) {
			continue
		}
		if netdevs, err := os.ReadDir(filepath.Join(sys, "bus/pci/devices", pci, "net")); err == nil && len(netdevs) > 0 {
			continue
		}
		rail := list.Rails[pci]
		n := inventory.NIC{PCI: pci, Vendor: fmt.Sprintf("%04x", d.Vendor), Device: fmt.Sprintf("%04x", d.Device), Driver: d.Driver, Path: d.Path, Rail: &rail}
		if d.NUMA >= 0 {
			n.NUMA = &d.NUMA
		}
		found = append(found, n)
	}
	return found
}

// hostLinks returns the links of the calling thread's netns.
func hostLinks() ([]*link.Link, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return link.Links(host)
}

// ofOthers sets the fact Others: the interfaces that are not NICs in the list. It looks at
// interfaces that were on the host before the list was read, that these records had lent before the
// list was read, and that are on the host now. It needs all three, because an interface may be
// returned and lent again at the same time.
func (f *Inventory) ofOthers(before []*link.Link, records []*ledger.Record) {
	now, err := hostLinks()
	known := map[string]bool{}
	for i := range f.list {
		known[f.list[i].Name] = true
	}
	others := []fact.HostInterface{}
	for _, l := range append(now, before...) {
		if l.Encap != "loopback" && !l.HasParent() && !known[l.Name] {
			known[l.Name] = true
			others = append(others, fact.HostInterface{
				Name: l.Name, AltNames: l.AltNames, MTU: l.MTU, Kind: l.Kind, AdminUp: l.IsUp(),
				Attachment: slices.ContainsFunc(records, func(r *ledger.Record) bool { return hasChild(r, l) }),
			})
		}
	}
	for _, r := range records {
		if r.Loan != nil && r.Loan.Snapshot != nil && r.Loan.PCI == "" && !known[r.Loan.Name] {
			known[r.Loan.Name] = true
			others = append(others, fact.HostInterface{Name: r.Loan.Name, AltNames: r.Loan.Snapshot.AltNames, MTU: r.Loan.Snapshot.MTU})
		}
	}
	f.others = fact.From(others, "rtnetlink and the ledger", err)
}

// hasChild reports whether the link l of the host may be the IPoIB child of the attachment. While the ADD makes the
// child, the record does not contain the child yet.
func hasChild(r *ledger.Record, l *link.Link) bool {
	return l.IsIPoIBChild() && r.Child != nil && r.Child.LinkKind() == link.KindIPoIB && (r.Child.PermMAC == "" || r.Child.PermMAC == l.PermMAC.String())
}

// ofNodeFile sets the pools, the fabric, and the problems with the rails and pools of the node
// file.
func (f *Inventory) ofNodeFile(list *inventory.NICList) {
	source := nodefile.Path()
	if _, err := nodefile.Read(source); err != nil {
		f.problems = fact.Known([]string{err.Error()}, source)
		f.fabric, f.pools = fact.Failed[string](source, err), fact.Failed[[]fact.Pool](source, err)
		return
	}
	f.fabric = fact.Known("", source)
	if list.File != nil {
		f.fabric.Value = list.File.Fabric
	}
	pools, found, err := list.Pools()
	problems := []string{}
	for _, p := range found {
		text := p.Reason + ": " + p.Message
		if p.Resource != "" {
			text = "resource " + p.Resource + ": " + text
		}
		problems = append(problems, text)
	}
	if err != nil {
		problems = append(problems, err.Error())
	}
	f.problems = fact.Known(problems, source)
	f.pools = fact.From(poolFacts(pools), source, err)
}

// poolFacts returns the facts about the pools.
func poolFacts(pools []resource.Pool) []fact.Pool {
	all := []fact.Pool{}
	for i := range pools {
		p := &pools[i]
		pool := fact.Pool{Resource: p.Resource, Kind: string(p.Mode), NICs: []string{}, Count: int64(len(p.IDs())), UMAD: p.UMAD}
		if p.Rail != nil {
			pool.Kind = "perRail"
		}
		for _, n := range p.NICs {
			name := n.PCI
			if len(n.Names) > 0 {
				name = n.Names[0]
			}
			pool.NICs = append(pool.NICs, name)
		}
		all = append(all, pool)
	}
	return all
}

// recordOf returns the record of the attachment that has the NIC. It returns nil if no attachment
// has the NIC.
func (c *Reader) recordOf(n *inventory.NIC) *ledger.Record {
	if n.Lent == nil {
		return nil
	}
	i := slices.IndexFunc(c.Held, func(r *ledger.Record) bool {
		return r.Key == ledger.Key{ContainerID: n.Lent.ContainerID, IfName: n.Lent.IfName}
	})
	if i < 0 {
		return nil
	}
	return c.Held[i]
}

// nic returns the facts about a NIC, except its counters. It also returns the place of the
// counters.
func (c *Reader) nic(list *inventory.NICList, n *inventory.NIC, sps *spaces) (fact.NIC, target) {
	found := fact.NIC{
		Name: n.Name, AltNames: n.AltNames, PCI: n.PCI, Kind: string(n.Kind), Vendor: n.Vendor, Device: n.Device, Driver: n.Driver,
		Rail: n.Rail, NUMA: n.NUMA, LinkType: n.LinkType, Protected: n.Protected, Uplink: n.Uplink, Children: n.Children, CharDevices: n.CharDevices,
		Firmware: fact.Known(n.Firmware, "ethtool"), // for a NIC without a netdev: the version when it still had one
	}
	if n.Lent != nil {
		found.Holder = cmp.Or(n.Lent.Pod, "container "+n.Lent.ContainerID)
		found.Moving = n.Lent.Phase != ledger.Lent
	}
	for _, g := range n.GPUs {
		if found.Distances == nil {
			found.Distances = map[string]string{}
		}
		found.Distances[g.PCI] = g.Distance.String()
	}
	t := target{record: c.recordOf(n)}
	if found.Rail == nil && found.PCI == "" && t.record != nil { // the node file cannot select a NIC that has no device
		found.Rail = t.record.Rail
	}
	now := t.readLink(&found, n, sps)
	if now != nil {
		t.name = now.Name
	}
	c.onPCI(&found, list, n)
	index := 0
	if now != nil && t.record == nil {
		index = now.Index
	}
	found.ManagedBy = c.managedBy(index)
	var ports []fact.Port
	var err error
	ports, t.ports, err = portsOf(n, now, t.record, sps)
	if len(ports) == 0 && err == nil {
		err = errors.Join(list.Errors...) // these errors may be the reason why the inventory has no devices
	}
	found.Ports = fact.From(ports, "RDMA netlink and sysfs", err)
	return found, t
}

// errMoving is the error for facts about an interface that is in neither of the two namespaces.
var errMoving = errors.New("the interface is neither on the host nor in its pod: either it is being moved at this moment, or another program has moved it")

// readLink sets the facts about the NIC's interface and returns the interface. It returns nil if
// the NIC has no interface. If the interface moves in the meantime, readLink reads it again at its
// new place.
func (t *target) readLink(found *fact.NIC, n *inventory.NIC, sps *spaces) *link.Link {
	for range linkTries {
		record := t.record
		now, err := t.interfaceOf(n, sps)
		sp := sps.podNetns(t.record)
		setLink(found, now, sp, err)
		if now == nil || sp.orGone(nil, now) == nil {
			return now
		}
		t.record = record
	}
	setLink(found, nil, sps.podNetns(t.record), errMoving)
	return nil
}

// interfaceOf returns the NIC's interface, which is on the host or in the pod that has the NIC. If
// the NIC has no interface, it returns nil without an error.
func (t *target) interfaceOf(n *inventory.NIC, sps *spaces) (*link.Link, error) {
	if n.Name == "" {
		return nil, nil //nolint:nilnil // a NIC without an interface is not an error
	}
	if t.record != nil {
		if sp := sps.podNetns(t.record); sp.Err == nil {
			if l := t.record.InterfaceIn(sp.Netns); l != nil {
				return l, nil
			}
		}
		t.record = nil // the pod is gone, or does not have the interface yet
	}
	host := sps.podNetns(nil)
	if host.Err != nil {
		return nil, host.Err
	}
	l, err := link.ByName(host.Netns, n.Name)
	if errors.Is(err, link.ErrNotFound) {
		return renamed(host.Netns, n)
	}
	return l, err
}

// renamed returns the NIC's interface if it is on the host under another name. This happens after
// somebody has taken the interface out of its pod.
func renamed(host *netns.Netns, n *inventory.NIC) (*link.Link, error) {
	links, err := link.Links(host)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		id := l.Identity()
		was := id
		was.PermMAC = n.PermanentMAC
		if n.PCI != "" && id.ParentDev == n.PCI && n.PermanentMAC != "" && id.Hardware() == was.Hardware() {
			return l, nil
		}
	}
	return nil, errMoving
}

// setLink sets the facts about the interface, which it reads in the interface's namespace. A NIC
// without an interface, for example with a userspace driver, counts as not up.
func setLink(n *fact.NIC, l *link.Link, sp *space, err error) {
	const source = "rtnetlink"
	if l == nil {
		n.AdminUp, n.Carrier, n.MTU = fact.From(false, source, err), fact.From(false, source, err), fact.From(0, source, err)
		n.Mbps, n.CarrierDown = fact.From(int64(0), source, err), fact.From(uint64(0), source, err)
		n.Addresses, n.DCB = fact.From([]string{}, source, err), fact.From(fact.DCB{}, "DCB netlink", err)
		n.ECN = fact.From(fact.ECN{}, "sysfs", err)
		return
	}
	n.AdminUp, n.Carrier, n.MTU = fact.Known(l.IsUp(), source), fact.Known(l.HasCarrier(), source), fact.Known(l.MTU, source)
	hardware, err := device.ReadHardware(sp.Netns, l.Name)
	n.Mbps = fact.From(int64(hardware.Mbps), "ethtool", err)
	n.Firmware = fact.From(cmp.Or(hardware.Firmware, n.Firmware.Value), "ethtool", err)
	dcb, err := device.ReadDCB(sp.Netns, l.Name)
	n.DCB = fact.From(dcbFacts(dcb), "DCB netlink", err)
	ecn, err := sp.ecn(l.Name)
	n.ECN = fact.From(ecn, "class/net/"+l.Name+"/ecn", err)
	addresses, err := sp.addresses(l.Index)
	n.Addresses = fact.From(addresses, source, err)
	lost, err := files.Number(sp.file("class", "net", l.Name, "carrier_down_count"))
	n.CarrierDown = fact.From(lost, "class/net/"+l.Name+"/carrier_down_count", err)
}

func dcbFacts(d *device.DCB) fact.DCB {
	if d == nil {
		return fact.DCB{}
	}
	var priorities []string
	for _, p := range d.PFC {
		priorities = append(priorities, strconv.Itoa(p))
	}
	return fact.DCB{Supported: true, PFC: strings.Join(priorities, ",")}
}

// portsOf returns the facts about the ports of the NIC's RDMA devices, and the places of their
// counters. In exclusive mode the RDMA devices of a lent NIC are in the pod, which may have renamed
// them.
func portsOf(n *inventory.NIC, now *link.Link, r *ledger.Record, sps *spaces) ([]fact.Port, []portAt, error) {
	mtu := 0
	if now != nil {
		mtu = now.MTU
	}
	found, places := []fact.Port{}, []portAt{}
	for _, p := range n.Ports {
		lent := recorded(r, p.Device)
		place := portAt{}
		is := func(d rdma.Device) bool { return d.Name == p.Device }
		if lent != nil && lent.Lent {
			place.record = r
			is = func(d rdma.Device) bool { return d.NodeGUID == lent.NodeGUID && d.ParentDev == lent.ParentDev }
		}
		sp := sps.podNetns(place.record)
		devices, err := sp.rdma()
		var d rdma.Device
		if err == nil {
			d, err = findDevice(devices, is)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("RDMA device %s: %w", p.Device, err)
		}
		numbers := []uint32{p.Port}
		if p.Port == 0 {
			numbers = nil
			for number := range d.Ports {
				numbers = append(numbers, number+1)
			}
		}
		for _, number := range numbers {
			port, err := sp.port(d, number, mtu, true)
			if err != nil {
				return nil, nil, fmt.Errorf("RDMA device %s: %w", p.Device, err)
			}
			place.device, place.port = d.Name, number
			found, places = append(found, port), append(places, place)
		}
	}
	return found, places, nil
}

// recorded returns the RDMA device with this name from the record. It returns nil if there is none.
func recorded(r *ledger.Record, name string) *ledger.RDMADevice {
	if r == nil || r.RDMA == nil {
		return nil
	}
	for i := range r.RDMA.Devices {
		if d := &r.RDMA.Devices[i]; d.Name == name {
			return d
		}
	}
	return nil
}
