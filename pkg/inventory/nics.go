package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// NIC is a NIC of this node, lent or not. Its JSON is that of "railctl nics".
type NIC struct {
	Name   string `json:"name,omitempty"` // on the host; empty if it has no netdev, or if another plugin has moved it
	PCI    string `json:"pci,omitempty"`
	Vendor string `json:"vendor,omitempty"` // four hexadecimal digits, as Device
	Device string `json:"device,omitempty"`
	Driver string `json:"driver,omitempty"`
	NUMA   *int   `json:"numa,omitempty"` // nil if the machine does not say
	MAC    string `json:"mac,omitempty"`
	MTU    int    `json:"mtu,omitempty"`
	Mbps   uint32 `json:"mbps,omitempty"` // speed in megabit per second; 0 if unknown, as for a lent NIC
	Link   string `json:"link,omitempty"` // up or down; empty if that cannot be read
	Ports  []Port `json:"rdma,omitempty"`
	// Lent is the attachment that has the NIC, nil if none has.
	Lent *Lent `json:"lent,omitempty"`
	// Macvlans is the number of attachments with a macvlan on it.
	Macvlans int   `json:"macvlans,omitempty"`
	GPUs     []GPU `json:"gpus,omitempty"` // of the node, the nearest first
}

// Port is a port of an RDMA device.
type Port struct {
	Device string `json:"device"` // its name on the host
	Port   uint32 `json:"port,omitempty"`
	State  string `json:"state,omitempty"` // "?" if it cannot be read
}

// Lent names the attachment that has a NIC.
type Lent struct {
	Pod         string       `json:"pod,omitempty"` // namespace/name
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifname"`
	Phase       ledger.Phase `json:"phase"`
}

// GPU is a GPU of the node, and how far it is from a NIC.
type GPU struct {
	PCI      string        `json:"pci"`
	UUID     string        `json:"uuid,omitempty"` // of NVIDIA's driver
	Distance pcie.Distance `json:"distance"`
}

// NICList has the NICs and the GPUs of a node.
type NICList struct {
	NICs   []NIC
	GPUs   []*pcie.Device
	Tree   *pcie.Tree
	Errors []error // parts that could not be read
}

// machine is what NICs reads.
type machine struct {
	host     *nic.Host
	stateDir string
}

// NICs returns the NICs of this node that have a device, and those that are lent, whether
// or not the state directory has a ledger. The calling thread must be in the host netns.
// It needs root.
func NICs(stateDir string) (*NICList, error) {
	host, err := link.CurrentNetns()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	m := machine{host: &nic.Host{Netns: host, Sys: "/sys", Proc: "/proc"}, stateDir: stateDir}
	return m.nics()
}

func (m *machine) nics() (*NICList, error) {
	tree, err := pcie.Read(m.host.Sys)
	if err != nil {
		return nil, err
	}
	links, err := m.host.Netns.Links()
	if err != nil {
		return nil, err
	}
	list := &NICList{NICs: []NIC{}, Tree: tree, GPUs: tree.GPUs()}
	for _, l := range links {
		if l.HasParent() {
			list.NICs = append(list.NICs, m.onHost(list, l))
		}
	}
	m.withoutNetdev(list)
	if err := m.ports(list); err != nil {
		list.Errors = append(list.Errors, err)
	}
	if ledger.Exists(m.stateDir) {
		held, err := Collect(m.stateDir, false)
		if err != nil {
			return nil, err
		}
		list.Errors = append(list.Errors, held.Errors...)
		for i := range held.Attachments {
			list.hold(&held.Attachments[i])
		}
	}
	uuids := m.uuids()
	for i := range list.NICs {
		list.NICs[i].addGPUs(list, uuids)
	}
	slices.SortStableFunc(list.NICs, func(a, b NIC) int { return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// onHost returns the NIC of a link of the host.
func (m *machine) onHost(list *NICList, l *link.Link) NIC {
	n := NIC{Name: l.Name, PCI: m.host.Of(l).PCI, MAC: l.MAC.String(), MTU: l.MTU, Link: LinkDown}
	if l.IsUp() && l.HasCarrier() {
		n.Link = LinkUp
	}
	driver, err := m.host.Netns.Driver(l.Name)
	if err != nil {
		list.Errors = append(list.Errors, err)
	}
	n.Mbps = driver.Mbps
	n.addDevice(list.Tree)
	return n
}

// addDevice adds the facts of the NIC's PCI function.
func (n *NIC) addDevice(tree *pcie.Tree) {
	d := tree.ByAddress(n.PCI)
	if d == nil {
		return
	}
	n.Vendor, n.Device, n.Driver = fmt.Sprintf("%04x", d.Vendor), fmt.Sprintf("%04x", d.Device), d.Driver
	if d.NUMA >= 0 {
		n.NUMA = &d.NUMA
	}
}

// ports adds the host's ports of RDMA devices.
func (m *machine) ports(list *NICList) error {
	if !m.host.HasRDMACore() {
		return nil
	}
	core, err := rdma.Open(m.host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range devices {
		ports, err := core.Ports(d)
		if !errors.Is(err, rdma.ErrNotFound) { // it moves just now
			errs = append(errs, err)
		}
		for _, p := range ports {
			if n := list.ofPort(d, p); n != nil {
				n.Ports = append(n.Ports, Port{Device: d.Name, Port: p.Number, State: p.State.String()})
			}
		}
	}
	return errors.Join(errs...)
}

// ofPort returns the NIC of a port, nil if it is not listed. The kernel names no interface
// of an InfiniBand port, a bond for its members, and none of an Ethernet port whose
// interface is in another netns: another interface of the function is not that port's.
func (list *NICList) ofPort(d rdma.Device, p rdma.Port) *NIC {
	if n := list.find(p.NetdevName, ""); n != nil {
		return n
	}
	n := list.find("", d.ParentDev)
	if n != nil && n.Name != "" && p.NetdevName == "" && p.LinkLayer != "InfiniBand" {
		return nil
	}
	return n
}

// hold adds an attachment to the NIC that it has, or on which its macvlan lies. A lent
// NIC that is not on the host is added.
func (list *NICList) hold(a *Attachment) {
	r := a.record
	if r.Child != nil {
		if n := list.find(a.NIC, ""); n != nil {
			n.Macvlans++
		}
		return
	}
	if r.Loan != nil {
		var devices []RDMADevice
		if a.RDMA != nil {
			devices = a.RDMA.Devices
		}
		list.lend(a, NIC{Name: r.Loan.Name, PCI: r.Loan.PCI, MAC: a.MAC, MTU: a.MTU, Link: a.Link}, devices)
		return
	}
	if a.RDMA == nil {
		return
	}
	for _, d := range a.RDMA.Devices { // another plugin has the netdev
		if d.Lent && list.Tree.ByAddress(d.Parent) != nil {
			list.lend(a, NIC{PCI: d.Parent}, []RDMADevice{d})
		}
	}
}

// lend marks the NIC, which it adds if it is not listed, as that of the attachment.
func (list *NICList) lend(a *Attachment, lent NIC, devices []RDMADevice) {
	n := list.find(lent.Name, lent.PCI)
	if n == nil {
		lent.addDevice(list.Tree)
		list.NICs = append(list.NICs, lent)
		n = &list.NICs[len(list.NICs)-1]
	}
	n.Lent = &Lent{Pod: a.Pod, ContainerID: a.ContainerID, IfName: a.IfName, Phase: a.Phase}
	if len(devices) > 0 {
		n.Ports = nil
	}
	for _, d := range devices {
		n.Ports = append(n.Ports, Port{Device: d.Name, Port: d.Port, State: d.State})
	}
}

// find returns the NIC with the name and, if it is given, the PCI address; without a name
// the first one with the PCI address. It returns nil if there is none.
func (list *NICList) find(name, pci string) *NIC {
	i := slices.IndexFunc(list.NICs, func(n NIC) bool {
		if name == "" {
			return pci != "" && n.PCI == pci
		}
		return n.Name == name && (pci == "" || n.PCI == pci)
	})
	if i < 0 {
		return nil
	}
	return &list.NICs[i]
}

// withoutNetdev adds the network functions that a userspace driver holds, and those with
// an RDMA device but no netdev (InfiniBand without IPoIB).
func (m *machine) withoutNetdev(list *NICList) {
	for _, d := range list.Tree.NICs() {
		known := slices.ContainsFunc(list.NICs, func(n NIC) bool { return n.PCI == d.Address })
		if known || m.host.HasNetdev(d.Address) || !nic.IsUserspaceDriver(d.Driver) && !m.host.HasRDMADevice(d.Address) {
			continue
		}
		n := NIC{PCI: d.Address}
		n.addDevice(list.Tree)
		list.NICs = append(list.NICs, n)
	}
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
// /proc/driver/nvidia/gpus/*/information. It is empty without that driver.
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
