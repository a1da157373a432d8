package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// nicFacts are the facts from one inventory.
type nicFacts struct {
	list     []doctor.NIC
	others   doctor.Fact[[]doctor.HostInterface]
	problems doctor.Fact[[]string]
	fabric   doctor.Fact[string]
	pools    doctor.Fact[[]doctor.Pool]
}

// ofNICs reads the facts about NICs and GPUs. It returns a function that completes the facts. The
// caller must call this function after all sources have ended.
func (c *collector) ofNICs(ctx context.Context, f *doctor.Facts) func() {
	take(ctx, c, &f.NICs.GPUs, filepath.Join(c.Sys, "bus/pci/devices"), localTime, c.gpus)
	var all doctor.Fact[nicFacts]
	take(ctx, c, &all, "the inventory of NICs", localTime+max(c.Sample, 0), c.nicFacts)
	var tables doctor.Fact[functionTables]
	if c.Functions {
		take(ctx, c, &tables, functionSource, localTime, c.functionTables)
	}
	return func() {
		if !all.OK() {
			err := errors.New(all.Error)
			f.NICs.List, f.NICs.Problems = doctor.Failed[[]doctor.NIC](all.Source, err), doctor.Failed[[]string](all.Source, err)
			f.NICs.Others = doctor.Failed[[]doctor.HostInterface](all.Source, err)
			f.NICs.Fabric, f.Kubelet.Pools = doctor.Failed[string](all.Source, err), doctor.Failed[[]doctor.Pool](all.Source, err)
			return
		}
		if c.Functions {
			addFunctions(all.Value.list, &tables)
		}
		f.NICs.List = doctor.Known(all.Value.list, "netlink, ethtool, sysfs and the ledger")
		f.NICs.Others = all.Value.others
		f.NICs.Problems, f.NICs.Fabric, f.Kubelet.Pools = all.Value.problems, all.Value.fabric, all.Value.pools
	}
}

func (c *collector) gpus(context.Context) ([]doctor.GPU, error) { return c.gpuList() }

// gpuList returns the node's GPUs.
func (c *collector) gpuList() ([]doctor.GPU, error) {
	tree, err := pcie.Read(c.Sys)
	if err != nil {
		return nil, err
	}
	found := []doctor.GPU{}
	for _, d := range tree.GPUs() {
		g := doctor.GPU{PCI: d.Address, Vendor: fmt.Sprintf("%04x", d.Vendor)}
		if d.NUMA >= 0 {
			g.NUMA = &d.NUMA
		}
		found = append(found, g)
	}
	return found, nil
}

// nicFacts reads the NICs once and their counters twice. Only root can read lent NICs, because they
// are in the network namespaces of pods.
func (c *collector) nicFacts(ctx context.Context) (nicFacts, error) {
	if !c.root {
		return nicFacts{}, errRoot
	}
	before, err := hostLinks()
	if err != nil {
		return nicFacts{}, err
	}
	list, err := inventory.NICs(c.StateDir)
	if err != nil {
		return nicFacts{}, err
	}
	found := nicFacts{list: []doctor.NIC{}}
	found.ofNodeFile(list)
	list.NICs = append(list.NICs, misplaced(c.Sys, list)...)
	targets := make([]target, len(list.NICs))
	func() {
		at := &spaces{}
		defer at.Close()
		for i := range list.NICs {
			n, t := c.nic(list, &list.NICs[i], at)
			found.list, targets[i] = append(found.list, n), t
		}
		found.ofOthers(before, c.records)
	}()
	if c.Sample > 0 {
		before, began := sample(targets), time.Now()
		ended := wait.For(ctx, c.Sample)
		after, seconds := sample(targets), time.Since(began).Seconds()
		for i := range found.list {
			if found.list[i].Rising = rising(before[i], after[i], seconds); ended != nil {
				found.list[i].Rising = doctor.Failed[doctor.Rising]("counters", ended)
			}
		}
	}
	return found, nil
}

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
		if own, err := os.ReadDir(filepath.Join(sys, "bus/pci/devices", pci, "net")); err == nil && len(own) > 0 {
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
func (f *nicFacts) ofOthers(before []*link.Link, records []*ledger.Record) {
	now, err := hostLinks()
	known := map[string]bool{}
	for i := range f.list {
		known[f.list[i].Name] = true
	}
	others := []doctor.HostInterface{}
	for _, l := range append(now, before...) {
		if l.Encap != "loopback" && !l.HasParent() && !known[l.Name] {
			known[l.Name] = true
			others = append(others, doctor.HostInterface{
				Name: l.Name, AltNames: l.AltNames, MTU: l.MTU, Kind: l.Kind, AdminUp: l.IsUp(),
				Attachment: slices.ContainsFunc(records, func(r *ledger.Record) bool { return hasChild(r, l) }),
			})
		}
	}
	for _, r := range records {
		if r.Loan != nil && r.Loan.Snapshot != nil && r.Loan.PCI == "" && !known[r.Loan.Name] {
			known[r.Loan.Name] = true
			others = append(others, doctor.HostInterface{Name: r.Loan.Name, AltNames: r.Loan.Snapshot.AltNames, MTU: r.Loan.Snapshot.MTU})
		}
	}
	f.others = doctor.From(others, "rtnetlink and the ledger", err)
}

// hasChild reports whether the link l of the host may be the IPoIB child of the attachment. While the ADD makes the
// child, the record does not contain the child yet.
func hasChild(r *ledger.Record, l *link.Link) bool {
	return l.IsIPoIBChild() && r.Child != nil && r.Child.LinkKind() == link.KindIPoIB && (r.Child.PermMAC == "" || r.Child.PermMAC == l.PermMAC.String())
}

// ofNodeFile sets the pools, the fabric, and the problems with the rails and pools of the node
// file.
func (f *nicFacts) ofNodeFile(list *inventory.NICList) {
	source := nodefile.Path()
	if _, err := nodefile.Read(source); err != nil {
		f.problems = doctor.Known([]string{err.Error()}, source)
		f.fabric, f.pools = doctor.Failed[string](source, err), doctor.Failed[[]doctor.Pool](source, err)
		return
	}
	f.fabric = doctor.Known("", source)
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
	f.problems = doctor.Known(problems, source)
	f.pools = doctor.From(poolFacts(pools), source, err)
}

// poolFacts returns the facts about the pools.
func poolFacts(pools []resource.Pool) []doctor.Pool {
	all := []doctor.Pool{}
	for i := range pools {
		p := &pools[i]
		pool := doctor.Pool{Resource: p.Resource, Kind: string(p.Mode), NICs: []string{}, Count: int64(len(p.IDs())), UMAD: p.UMAD}
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
func (c *collector) recordOf(n *inventory.NIC) *ledger.Record {
	if n.Lent == nil {
		return nil
	}
	i := slices.IndexFunc(c.records, func(r *ledger.Record) bool {
		return r.Key == ledger.Key{ContainerID: n.Lent.ContainerID, IfName: n.Lent.IfName}
	})
	if i < 0 {
		return nil
	}
	return c.records[i]
}

// nic returns the facts about a NIC, except its counters. It also returns the place of the
// counters.
func (c *collector) nic(list *inventory.NICList, n *inventory.NIC, at *spaces) (doctor.NIC, target) {
	found := doctor.NIC{
		Name: n.Name, AltNames: n.AltNames, PCI: n.PCI, Kind: string(n.Kind), Vendor: n.Vendor, Device: n.Device, Driver: n.Driver,
		Rail: n.Rail, NUMA: n.NUMA, LinkType: n.LinkType, Protected: n.Protected, Uplink: n.Uplink, Children: n.Children, CharDevices: n.CharDevices,
		Firmware: doctor.Known(n.Firmware, "ethtool"), // for a NIC without a netdev: the version when it still had one
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
	now := t.readLink(&found, n, at)
	if now != nil {
		t.name = now.Name
	}
	c.onPCI(&found, list, n)
	index := 0
	if now != nil && t.record == nil {
		index = now.Index
	}
	found.ManagedBy = c.managedBy(index)
	var ports []doctor.Port
	var err error
	ports, t.ports, err = portsOf(n, now, t.record, at)
	if len(ports) == 0 && err == nil {
		err = errors.Join(list.Errors...) // these errors may be the reason why the inventory has no devices
	}
	found.Ports = doctor.From(ports, "RDMA netlink and sysfs", err)
	return found, t
}

// errMoving is the error for facts about an interface that is in neither of the two namespaces.
var errMoving = errors.New("the interface is neither on the host nor in its pod: either it is being moved at this moment, or another program has moved it")

// readLink sets the facts about the NIC's interface and returns the interface. It returns nil if
// the NIC has no interface. If the interface moves in the meantime, readLink reads it again at its
// new place.
func (t *target) readLink(found *doctor.NIC, n *inventory.NIC, at *spaces) *link.Link {
	for range linkTries {
		record := t.record
		now, err := t.interfaceOf(n, at)
		sp := at.podNetns(t.record)
		setLink(found, now, sp, err)
		if now == nil || sp.orGone(nil, now) == nil {
			return now
		}
		t.record = record
	}
	setLink(found, nil, at.podNetns(t.record), errMoving)
	return nil
}

// interfaceOf returns the NIC's interface, which is on the host or in the pod that has the NIC. If
// the NIC has no interface, it returns nil without an error.
func (t *target) interfaceOf(n *inventory.NIC, at *spaces) (*link.Link, error) {
	if n.Name == "" {
		return nil, nil //nolint:nilnil // a NIC without an interface is not an error
	}
	if t.record != nil {
		if sp := at.podNetns(t.record); sp.Err == nil {
			if l := t.record.InterfaceIn(sp.Netns); l != nil {
				return l, nil
			}
		}
		t.record = nil // the pod is gone, or does not have the interface yet
	}
	host := at.podNetns(nil)
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
func setLink(n *doctor.NIC, l *link.Link, at *space, err error) {
	const source = "rtnetlink"
	if l == nil {
		n.AdminUp, n.Carrier, n.MTU = doctor.From(false, source, err), doctor.From(false, source, err), doctor.From(0, source, err)
		n.Mbps, n.CarrierDown = doctor.From(int64(0), source, err), doctor.From(uint64(0), source, err)
		n.Addresses, n.DCB = doctor.From([]string{}, source, err), doctor.From(doctor.DCB{}, "DCB netlink", err)
		n.ECN = doctor.From(doctor.ECN{}, "sysfs", err)
		return
	}
	n.AdminUp, n.Carrier, n.MTU = doctor.Known(l.IsUp(), source), doctor.Known(l.HasCarrier(), source), doctor.Known(l.MTU, source)
	hardware, err := device.ReadHardware(at.Netns, l.Name)
	n.Mbps = doctor.From(int64(hardware.Mbps), "ethtool", err)
	n.Firmware = doctor.From(cmp.Or(hardware.Firmware, n.Firmware.Value), "ethtool", err)
	dcb, err := device.ReadDCB(at.Netns, l.Name)
	n.DCB = doctor.From(dcbFacts(dcb), "DCB netlink", err)
	ecn, err := at.ecn(l.Name)
	n.ECN = doctor.From(ecn, "class/net/"+l.Name+"/ecn", err)
	addresses, err := at.addresses(l.Index)
	n.Addresses = doctor.From(addresses, source, err)
	lost, err := number(at.file("class", "net", l.Name, "carrier_down_count"))
	n.CarrierDown = doctor.From(lost, "class/net/"+l.Name+"/carrier_down_count", err)
}

// ecn returns the congestion control of an interface. It returns the zero ECN if the driver has no
// files for it.
func (sp *space) ecn(name string) (doctor.ECN, error) {
	dir, err := sp.dir()
	if err != nil {
		return doctor.ECN{}, err
	}
	if dir, err = within(dir, []string{"class", "net", name, "ecn"}); err != nil {
		return doctor.ECN{}, err
	}
	return ecnIn(dir)
}

// ecnIn reads the directory "ecn" of an interface. That directory contains one directory for each
// role of the NIC. Its subdirectory "enable" contains one file for each priority.
func ecnIn(dir string) (doctor.ECN, error) {
	if there, err := exists(dir); !there {
		return doctor.ECN{}, err
	}
	enabled := func(role string) (string, error) {
		var on []string
		for priority := range 8 {
			p := strconv.Itoa(priority)
			value, err := readText(filepath.Join(dir, role, "enable", p))
			if err != nil {
				return "", err
			}
			if strings.TrimSpace(value) == "1" {
				on = append(on, p)
			}
		}
		return strings.Join(on, ","), nil
	}
	np, err := enabled("roce_np")
	if err != nil {
		return doctor.ECN{}, err
	}
	rp, err := enabled("roce_rp")
	if err != nil {
		return doctor.ECN{}, err
	}
	return doctor.ECN{Known: true, NP: np, RP: rp}, nil
}

func dcbFacts(d *device.DCB) doctor.DCB {
	if d == nil {
		return doctor.DCB{}
	}
	var priorities []string
	for _, p := range d.PFC {
		priorities = append(priorities, strconv.Itoa(p))
	}
	return doctor.DCB{Supported: true, PFC: strings.Join(priorities, ",")}
}

// portsOf returns the facts about the ports of the NIC's RDMA devices, and the places of their
// counters. In exclusive mode the RDMA devices of a lent NIC are in the pod, which may have renamed
// them.
func portsOf(n *inventory.NIC, now *link.Link, r *ledger.Record, at *spaces) ([]doctor.Port, []portAt, error) {
	mtu := 0
	if now != nil {
		mtu = now.MTU
	}
	found, places := []doctor.Port{}, []portAt{}
	for _, p := range n.Ports {
		lent := recorded(r, p.Device)
		where := portAt{}
		is := func(d rdma.Device) bool { return d.Name == p.Device }
		if lent != nil && lent.Lent {
			where.record = r
			is = func(d rdma.Device) bool { return d.NodeGUID == lent.NodeGUID && d.ParentDev == lent.ParentDev }
		}
		sp := at.podNetns(where.record)
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
			where.device, where.port = d.Name, number
			found, places = append(found, port), append(places, where)
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
