package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/pciname"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// NIC is a NIC of this node, lent or not. Its JSON form is the output of "railctl nics". Link,
// AdminDown, Mbps and the states of Ports are the current state. For a lent NIC they are read in
// its pod. All other properties stay the same while the NIC is lent.
type NIC struct {
	Name     string   `json:"name,omitempty"` // on the host; empty if the NIC has no netdev, or if another plugin has moved it
	AltNames []string `json:"altNames,omitempty"`
	PCI      string   `json:"pci,omitempty"` // the function at or above the NIC
	// Auxiliary is a subfunction's device on the auxiliary bus, "mlx5_core.sf.4".
	Auxiliary string `json:"auxiliary,omitempty"`
	Kind      Kind   `json:"kind,omitempty"`     // empty for a representor, and if there is no PCI function
	Parent    string `json:"parent,omitempty"`   // of a VF or SF: the physical function's PCI address
	VFNumber  *int   `json:"vfNumber,omitempty"` // number of a VF, nil for another NIC
	PFName    string `json:"pfName,omitempty"`   // of a VF or SF: the physical function's netdev on the host
	// Representor is set if the netdev represents a VF or SF in the switch of the NIC (switchdev).
	// Then PCI is the address of the physical function.
	Representor bool   `json:"representor,omitempty"`
	ACPIIndex   int    `json:"acpiIndex,omitempty"`
	Vendor      string `json:"vendor,omitempty"` // four hexadecimal digits, as Device
	Device      string `json:"device,omitempty"`
	Model       string `json:"model,omitempty"` // "ConnectX-7"; empty if package pciname does not know it
	Driver      string `json:"driver,omitempty"`
	Firmware    string `json:"firmware,omitempty"`
	NUMA        *int   `json:"numa,omitempty"` // nil if the machine does not report it
	// Path has the host bridge and the PCI bridges above the NIC, as pcie.Device.Path has.
	Path         []string `json:"path,omitempty"`
	MAC          string   `json:"mac,omitempty"` // on the host
	PermanentMAC string   `json:"permanentMAC,omitempty"`
	LinkType     string   `json:"linkType,omitempty"` // "ether" or "infiniband"
	PKey         uint16   `json:"-"`                  // partition key of an InfiniBand netdev
	MTU          int      `json:"mtu,omitempty"`      // on the host
	Mbps         uint32   `json:"mbps,omitempty"`     // speed in megabit per second; 0 if unknown
	Link         string   `json:"link,omitempty"`     // up or down; empty if that cannot be read
	AdminDown    bool     `json:"adminDown,omitempty"`
	Rail         *int     `json:"rail,omitempty"` // by the node file; nil if the NIC has no rail
	Ports        []Port   `json:"rdma,omitempty"`
	// CharDevices has the paths of the char devices of the NIC's RDMA devices.
	CharDevices []string `json:"charDevices,omitempty"`
	// Protected is the reason why no network may lend the NIC now: a guardrail that the network
	// does not override, or the node file. It is empty if there is no reason, and for a lent NIC.
	Protected string `json:"protected,omitempty"`
	// Uplink is set if a default route of the host leaves by the NIC, or by a link on the NIC (a
	// bond, a VLAN).
	Uplink bool `json:"uplink,omitempty"`
	// Lent is the attachment that has the NIC, or nil if the NIC is not lent.
	Lent *Lent `json:"lent,omitempty"`
	// Children is the number of attachments with a child interface on the NIC: a macvlan or an
	// IPoIB child.
	Children int   `json:"children,omitempty"`
	GPUs     []GPU `json:"gpus,omitempty"` // the GPUs of the node, the nearest first

	parentDev, hardware string // of the netdev: link.Identity.ParentDev and .Hardware
}

// Kind is the kind of a NIC's function.
type Kind string

// The kinds.
const (
	PF Kind = "pf" // physical function; also the only function of a NIC
	VF Kind = "vf" // virtual function
	SF Kind = "sf" // subfunction
)

// Port is a port of an RDMA device.
type Port struct {
	Device string `json:"device"` // name of the RDMA device on the host
	Port   uint32 `json:"port,omitempty"`
	State  string `json:"state,omitempty"` // "?" if it cannot be read
}

// Lent names the attachment that has a NIC.
type Lent struct {
	Pod         string       `json:"pod,omitempty"` // namespace/name
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifname"`
	Phase       ledger.Phase `json:"phase"`
	State       string       `json:"state,omitempty"` // of the pod netns: alive or gone
}

// GPU is a GPU of the node, and how far it is from a NIC.
type GPU struct {
	PCI      string        `json:"pci"`
	UUID     string        `json:"uuid,omitempty"` // from NVIDIA's driver
	Distance pcie.Distance `json:"distance"`
}

// NICList has the NICs and the GPUs of a node.
type NICList struct {
	NICs []NIC
	GPUs []*pcie.Device
	Tree *pcie.Tree
	// File is the node file, which defines the rails of the NICs and protects NICs. It is nil if
	// there is no node file, or if the file cannot be read.
	File         *nodefile.File
	Rails        map[string]int     // by PCI address, as File defines them
	RailProblems []resource.Problem // problems with the rails in the node file
	Errors       []error            // parts that could not be read

	facts []resource.NIC
	// left is set if a NIC left the host while the list was being made. Then the list has only a
	// part of that NIC's facts.
	left bool
}

// machine has the sources of what [NICs] reads.
type machine struct {
	host      *nic.Host
	stateDirs []string
	nodeFile  *nodefile.Reader
	// isNIC reports whether a link can be a NIC. It is [link.Link.HasParent], except in tests.
	isNIC func(*link.Link) bool
}

// NICs returns the NICs of this node that have a device, and the NICs that are lent by the ledgers
// in the state directories of the plugins. A state directory need not have a ledger. The calling
// thread must be in the host netns. NICs needs root.
func NICs(stateDirs ...string) (*NICList, error) {
	return NICsBy(&nodefile.Reader{}, stateDirs...)
}

// NICsBy returns what [NICs] returns. It is for a long-running process, which has a reader of the
// node file.
func NICsBy(nodeFile *nodefile.Reader, stateDirs ...string) (*NICList, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	m := machine{host: &nic.Host{Netns: host, Sys: "/sys", Proc: "/proc"}, stateDirs: stateDirs, nodeFile: nodeFile, isNIC: (*link.Link).HasParent}
	return m.nics()
}

// nicTries bounds how often the node is read because a NIC left during the read. The next read
// finds either the record that the ADD wrote before the NIC left, or that the NIC is gone. Only if
// a NIC comes and goes all the time, it may have left during the last read too.
const nicTries = 5

// nics reads the node again until no NIC leaves during a read.
func (m *machine) nics() (list *NICList, err error) {
	for range nicTries {
		if list, err = m.read(); err != nil || !list.left {
			break
		}
	}
	return list, err
}

// read reads the links both before and after the ledgers. So it finds a NIC that is lent or
// returned meanwhile, either among the links or in a ledger.
func (m *machine) read() (*NICList, error) {
	tree, err := pcie.Read(m.host.Sys)
	if err != nil {
		return nil, err
	}
	list := &NICList{NICs: []NIC{}, Tree: tree, GPUs: tree.GPUs()}
	before, err := link.Links(m.host.Netns)
	if err != nil {
		return nil, err
	}
	held, err := m.held(list)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if list.File, _, err = m.nodeFile.Read(); err != nil {
		list.Errors = append(list.Errors, fmt.Errorf("no NIC can be lent now: %w", err))
	}
	links, views, err := m.views(before)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if m.isNIC(l) {
			list.NICs = append(list.NICs, m.onHost(list, l))
		}
	}
	m.withoutNetdev(list)
	for i := range held.attachments {
		list.hold(&held.attachments[i])
	}
	if err := m.ports(list, held, links); err != nil {
		list.Errors = append(list.Errors, err)
	}
	m.complete(list, links)
	m.protect(list, held, views)
	if err := m.uplinks(list, links); err != nil {
		list.Errors = append(list.Errors, err)
	}
	m.rails(list)
	slices.SortStableFunc(list.NICs, func(a, b NIC) int { return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// views returns the links of the host. It also returns, by index, what the guardrails must know
// about each link that can be a NIC. It adds the links in before that have left since.
func (m *machine) views(before []*link.Link) ([]*link.Link, map[int]*link.View, error) {
	views, err := link.ReadViews(m.host.Netns, m.isNIC)
	if err != nil {
		return nil, nil, err
	}
	var links []*link.Link
	for _, v := range views {
		links = v.Links
		break
	}
	if len(views) == 0 {
		links, err = link.Links(m.host.Netns)
	}
	for _, l := range before {
		listed := slices.ContainsFunc(links, func(other *link.Link) bool { return other.Index == l.Index })
		if !listed && m.isNIC(l) {
			links = append(slices.Clone(links), l)
		}
	}
	return links, views, err
}

// onHost returns the NIC of a link of the host.
func (m *machine) onHost(list *NICList, l *link.Link) NIC {
	n := NIC{
		Name: l.Name, AltNames: l.AltNames, PCI: m.host.NICOf(l).PCI, MAC: l.MAC.String(), PermanentMAC: l.PermMAC.String(), MTU: l.MTU, LinkType: l.Encap,
		Link: stateOfLink(l), AdminDown: !l.IsUp(),
		parentDev: l.ParentDev, hardware: l.Identity().Hardware(), Representor: m.host.IsRepresentor(l),
	}
	if l.IPoIB != nil {
		n.PKey = l.IPoIB.PKey
	}
	if l.ParentBus == "auxiliary" {
		n.Auxiliary = l.ParentDev
	}
	hardware, err := device.ReadHardware(m.host.Netns, l.Name)
	if err != nil && !list.noteLeft(err) && !errors.Is(err, unix.ENODEV) { // ENODEV: its driver is resetting it
		list.Errors = append(list.Errors, err)
	}
	n.Mbps, n.Firmware = hardware.Mbps, hardware.Firmware
	n.addDevice(list.Tree)
	return n
}

// noteLeft reports whether err means that a NIC has just left the host, and notes that. It also
// notes ENODEV for a NIC that is on the host. Such a NIC may have left and come back, or its driver
// may be resetting it: the next read shows which.
func (list *NICList) noteLeft(err error) bool {
	gone := errors.Is(err, link.ErrNotFound)
	list.left = list.left || gone || errors.Is(err, unix.ENODEV)
	return gone
}

// addDevice adds the facts about the NIC's PCI function.
func (n *NIC) addDevice(tree *pcie.Tree) {
	d := tree.ByAddress(n.PCI)
	if d == nil {
		return
	}
	n.Vendor, n.Device, n.Driver, n.Path = fmt.Sprintf("%04x", d.Vendor), fmt.Sprintf("%04x", d.Device), d.Driver, d.Path
	n.Model = pciname.Of(n.Vendor, n.Device)
	if d.NUMA >= 0 {
		n.NUMA = &d.NUMA
	}
}

// find returns the NIC with this name and, if pci is not empty, this PCI address. If name is empty,
// it returns the first NIC with the PCI address. It returns nil if there is no such NIC.
func (list *NICList) find(name, pci string) *NIC {
	return list.first(func(n *NIC) bool {
		if name == "" {
			return pci != "" && n.PCI == pci && n.Auxiliary == "" && !n.Representor
		}
		return n.Name == name && (pci == "" || n.PCI == pci)
	})
}

// first returns the first NIC for which match returns true, or nil if there is none.
func (list *NICList) first(match func(*NIC) bool) *NIC {
	for i := range list.NICs {
		if match(&list.NICs[i]) {
			return &list.NICs[i]
		}
	}
	return nil
}

// withoutNetdev adds the network functions that a userspace driver holds, and the network functions
// that have an RDMA device but no netdev (InfiniBand without IPoIB).
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
