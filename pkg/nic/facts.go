package nic

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// These are subclasses of network controllers (PCI Code and ID Assignment Specification, section
// 1.3). The netdev that a driver makes may have another link layer than the subclass shows.
const (
	classEthernet   = 0x0200
	classInfiniBand = 0x0207
)

// Facts returns the network functions of the PCI bus, sorted by address, with the facts by which
// pools and rails select functions. It reads facts from sysfs, most of which are there even while a
// function is lent. known has the other facts of lent functions, by PCI address. These are the
// names, the MAC, the link layer and the RDMA devices, which the host does not show while they are
// away, and the char devices, which the kernel removes and makes again when an RDMA device moves
// (rdma_dev_change_netns). Facts does not set Protected.
func (h *Host) Facts(known map[string]resource.NIC) ([]resource.NIC, error) {
	tree, err := pcie.ReadNICs(h.Sys)
	if err != nil {
		return nil, err
	}
	links, err := link.Links(h.Netns)
	if err != nil {
		return nil, err
	}
	return h.FactsOf(tree, links, known), nil
}

// FactsOf returns what [Host.Facts] returns, for a caller that has already read the PCI bus and the
// links of the host.
func (h *Host) FactsOf(tree *pcie.Tree, links []*link.Link, known map[string]resource.NIC) []resource.NIC {
	var found []resource.NIC
	for _, d := range tree.NICs() {
		found = append(found, h.factsOf(d, links, known[d.Address]))
	}
	h.addFunctions(found)
	return found
}

// IsRepresentor reports whether l, a link of the host, is the representor of a virtual function or
// subfunction.
func (h *Host) IsRepresentor(l *link.Link) bool { return h.representor(l) == 1 }

// factsOf returns the facts of one function.
func (h *Host) factsOf(d *pcie.Device, links []*link.Link, known resource.NIC) resource.NIC {
	dir := filepath.Join("bus/pci/devices", d.Address)
	n := resource.NIC{
		PCI: d.Address, Vendor: fmt.Sprintf("%04x", d.Vendor), Device: fmt.Sprintf("%04x", d.Device), Driver: d.Driver, Path: d.Path,
		Names: known.Names, MAC: known.MAC, LinkType: known.LinkType, PKey: known.PKey,
		RDMA: h.entries(dir, "infiniband"), CharDevices: h.CharDevices("pci", d.Address), ACPIIndex: h.number(dir, "acpi_index"), Parent: h.PhysicalFunction(d.Address),
	}
	if d.NUMA >= 0 {
		n.NUMA = &d.NUMA
	}
	if len(n.RDMA) == 0 {
		n.RDMA = known.RDMA
	}
	if len(n.CharDevices) == 0 {
		n.CharDevices = known.CharDevices
	}
	if l := h.netdev(links, dir); l != nil {
		n.Names, n.LinkType, n.MAC = l.Names(), l.Encap, l.PermMAC.String()
		if l.IPoIB != nil {
			n.PKey = l.IPoIB.PKey
		}
		if n.MAC == "" {
			n.MAC = l.MAC.String()
		}
	}
	if n.LinkType == "" {
		n.LinkType = LinkType(n.MAC)
	}
	if n.LinkType == "" {
		n.LinkType = map[uint32]string{classEthernet: "ether", classInfiniBand: "infiniband"}[d.Class>>8]
	}
	return n
}

// CharDevices returns the sorted paths of the char devices that belong to the RDMA devices of a
// device. sysfs shows char devices in every namespace, even while their RDMA device is in another
// namespace, because their classes have no ns_type (uverbs_class, umad_class). They are missing
// only while the RDMA device moves.
func (h *Host) CharDevices(bus, device string) []string {
	var paths []string
	for _, class := range []string{"infiniband_mad", "infiniband_verbs"} {
		for _, name := range h.entries(filepath.Join("bus", bus, "devices", device), class) {
			if charDevice().MatchString(name) {
				paths = append(paths, CharDevice(name))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// charDevice matches the names of the char devices of one RDMA device. Like the expressions in
// nic.go, it is compiled on first use.
var charDevice = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(uverbs|umad|issm)[0-9]+$`) })

// CharDevice returns the path of the RDMA char device with this name, for example "uverbs3".
func CharDevice(name string) string { return "/dev/infiniband/" + name }

// LinkType returns the link layer of a netdev, by the length of its MAC address. It returns
// "ether", "infiniband" (an IPoIB address has 20 bytes), or "" for another link layer.
func LinkType(mac string) string {
	switch strings.Count(mac, ":") {
	case 5:
		return "ether"
	case 19:
		return "infiniband"
	}
	return ""
}

// entries returns the names in the directory name of a device. dir is the directory of the device,
// below sysfs.
func (h *Host) entries(dir, name string) []string {
	list, _ := os.ReadDir(filepath.Join(h.Sys, dir, name)) // most devices have no such directory
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// number returns the number in a file of a device, or 0 if there is no number.
func (h *Host) number(dir, file string) int {
	text, _ := os.ReadFile(filepath.Join(h.Sys, dir, file))
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// addFunctions adds facts about the physical function to each virtual function: the name of the
// physical function's netdev, and the number of the virtual function.
func (h *Host) addFunctions(nics []resource.NIC) {
	for _, pf := range nics {
		virtual, _ := h.VirtualFunctions(pf.PCI) // a function that is just being removed has no facts
		for number, pci := range virtual {
			i := slices.IndexFunc(nics, func(n resource.NIC) bool { return n.PCI == pci })
			if i < 0 {
				continue
			}
			nics[i].VF = number
			if len(pf.Names) > 0 {
				nics[i].PF = pf.Names[0]
			}
		}
	}
}

// PhysicalFunction returns the PCI address of the physical function of the virtual function at the
// address pci. It returns "" if the function at that address is not a virtual function.
func (h *Host) PhysicalFunction(pci string) string {
	if !validName(pci) {
		return ""
	}
	target, err := os.Readlink(filepath.Join(h.Sys, "bus/pci/devices", pci, "physfn"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// FunctionNumber returns the number of the virtual function among the virtual functions of the
// physical function. Both functions are given by their PCI address. ok reports whether the virtual
// function belongs to the physical function.
func (h *Host) FunctionNumber(physical, virtual string) (number int, ok bool) {
	all, _ := h.VirtualFunctions(physical) // a function that is just being removed does not count
	for number, pci := range all {
		if pci == virtual {
			return number, true
		}
	}
	return 0, false
}

// VirtualFunctions returns the PCI addresses of the virtual functions of a physical function, by
// their numbers. They are the targets of the links virtfn0, virtfn1 and so on. If some links cannot
// be read, it returns an error together with the other addresses. For a device that is not a PCI
// function it returns no addresses.
func (h *Host) VirtualFunctions(physical string) (map[int]string, error) {
	if !validName(physical) {
		return nil, nil
	}
	dir := filepath.Join(h.Sys, "bus/pci/devices", physical)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	found, errs := map[int]string{}, []error{err}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "virtfn")
		number, err := strconv.Atoi(text)
		if !ok || err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found[number] = filepath.Base(target)
	}
	return found, errors.Join(errs...)
}

// maxLevels bounds the height of a stack of links. The kernel has the same bound (MAX_NEST_DEV).
const maxLevels = 8

// NICBelow returns the NIC on which the link l lies. A VLAN, for example, has no parent device of
// its own, and lies on a NIC. If l is a NIC, or does not lie on any link, NICBelow returns l.
func (h *Host) NICBelow(l *link.Link) *link.Link {
	for range maxLevels {
		below := LiesOn(l)
		if l.HasParent() || below == 0 {
			break
		}
		lower, err := link.ByIndex(h.Netns, below)
		if err != nil {
			break
		}
		l = lower
	}
	return l
}

// Is reports whether id identifies the NIC n. id is a PCI address or an auxiliary device of this
// host. A link without a device of its own is identified by the device of the NIC on which it lies.
// A bond is identified by the device of each of its members.
func (h *Host) Is(n *NIC, id string) bool {
	if n.Link == nil {
		return n.PCI == id
	}
	l := h.NICBelow(n.Link)
	if l.HasParent() || h.hasDevice(l, id) {
		return h.hasDevice(l, id)
	}
	links, err := link.Links(h.Netns)
	return err == nil && slices.ContainsFunc(links, func(member *link.Link) bool {
		return member.Master != 0 && member.Master == l.Index && h.hasDevice(member, id)
	})
}

// hasDevice reports whether id is the device of l, a link of the host. id is a PCI address or an
// auxiliary device.
func (h *Host) hasDevice(l *link.Link, id string) bool {
	switch l.ParentBus {
	case "pci", "auxiliary":
		return l.ParentDev == id
	case "": // kernels before 5.14 do not report the parent
		bus := "bus/pci/devices"
		if h.IsAux(id) {
			bus = "bus/auxiliary/devices"
		}
		dir := filepath.Join(bus, id)
		return slices.ContainsFunc(h.listed(dir, h.virtioOf(dir)), func(other *link.Link) bool { return other.Index == l.Index })
	}
	return h.pciOf(l) == id
}

// IsNIC reports whether id can be a NIC. id is a PCI address or an auxiliary device of this host. A
// PCI function of another class, such as a GPU, cannot be a NIC.
func (h *Host) IsNIC(id string) bool {
	if !h.IsPCI(id) {
		return h.IsAux(id)
	}
	class, err := os.ReadFile(filepath.Join(h.Sys, "bus/pci/devices", id, "class"))
	return err != nil || strings.HasPrefix(string(class), "0x02")
}
