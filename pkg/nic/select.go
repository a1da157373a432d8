package nic

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Host has the sources of facts about this machine.
type Host struct {
	// Netns is the host netns. The caller must close it.
	Netns *netns.Netns
	// Sys is the root of sysfs: "/sys", except in tests.
	Sys string
	// Proc is the root of procfs: "/proc", except in tests.
	Proc string
	// Udev is the directory of udev's state, or "" if no udev handles the host netns.
	Udev string
	// Holder, if set, returns the holder of a device of the host, or "" if the
	// device is not lent. device is a PCI address or a name on the auxiliary bus.
	Holder func(device string) string
	// NodeIP, if set, returns the address by which the cluster reaches the node, or
	// the zero Addr if it is not known.
	NodeIP func() (netip.Addr, error)
}

// Selector selects a NIC. If several fields are set, only the first of them counts.
type Selector struct {
	Device     string // name or altname of the netdev
	HWAddr     string // MAC address
	KernelPath string // absolute path below /sys/devices
	PCI        string // PCI address, "0000:3b:00.0"
	Aux        string // auxiliary device, "mlx5_core.sf.4"
}

// IsZero reports whether no field is set.
func (s Selector) IsZero() bool { return s == Selector{} }

func (s Selector) String() string {
	switch {
	case s.Device != "":
		return fmt.Sprintf("device %q", s.Device)
	case s.HWAddr != "":
		return fmt.Sprintf("hwaddr %q", s.HWAddr)
	case s.KernelPath != "":
		return fmt.Sprintf("kernelpath %q", s.KernelPath)
	case s.PCI != "":
		return fmt.Sprintf("PCI device %q", s.PCI)
	default:
		return fmt.Sprintf("auxiliary device %q", s.Aux)
	}
}

// NIC is one network function of the host.
type NIC struct {
	// Link is the NIC's netdev in the host netns. It is nil if the NIC has no netdev, either
	// because a userspace driver holds the function, or because the driver has made only an RDMA
	// device.
	Link *link.Link
	// PCI is the address of the PCI function at or above the NIC, or "" if there is none.
	PCI string
	// Driver is the driver of a function without a netdev.
	Driver string
	// RDMAAlone is set if the function has an RDMA device, but no netdev in any network namespace.
	// Examples are an InfiniBand HCA without ib_ipoib, and a device that never has a netdev, such
	// as AWS's EFA.
	RDMAAlone bool
}

// Key returns a key that identifies the NIC on this machine. The key contains the NIC's parent
// device, which is the same in every netns. If the NIC has no parent device, the key contains its
// netns and name.
func (n *NIC) Key(host netns.ID) string {
	switch {
	case n.Link == nil:
		return "pci " + n.PCI
	case n.Link.HasParent():
		// Two ports of one function are two different NICs. So are two representors, which have no
		// permanent MAC.
		which := n.Link.Identity().Hardware()
		if which == "" {
			which = n.Link.Name
		}
		return fmt.Sprintf("%s %s %s", n.Link.ParentBus, n.Link.ParentDev, which)
	default:
		return fmt.Sprintf("%s %s", host, n.Link.Name)
	}
}

// HasRDMA reports whether the device of l has an RDMA device, in any network
// namespace.
func (h *Host) HasRDMA(l *link.Link) bool { return l.HasParent() && h.HasRDMADevice(l.ParentDev) }

// driverOf returns the name of the driver that holds the NIC's device, or "" if the NIC has no
// device of its own.
func (h *Host) driverOf(n *NIC) string {
	dir := filepath.Join(h.Sys, "bus/pci/devices", n.PCI)
	switch {
	case n.Link != nil && n.Link.HasParent():
		dir = filepath.Join(h.Sys, "bus", n.Link.ParentBus, "devices", n.Link.ParentDev)
	case n.Link != nil:
		return ""
	}
	driver, err := os.Readlink(filepath.Join(dir, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(driver)
}

// NICOf returns the NIC of a link of the host.
func (h *Host) NICOf(l *link.Link) *NIC { return &NIC{Link: l, PCI: h.pciOf(l)} }

// ErrNotFound is wrapped by the error that no NIC matches a selector.
var ErrNotFound = errors.New("no such NIC on this host")

// userspaceDrivers are drivers that bypass the kernel's network stack.
var userspaceDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// IsUserspaceDriver reports whether the driver bypasses the kernel's network stack.
func IsUserspaceDriver(name string) bool { return slices.Contains(userspaceDrivers, name) }

// Select returns the NIC that s selects. The error wraps [ErrNotFound] if there is no such NIC. The
// error for a malformed selector does not wrap it.
func (h *Host) Select(s Selector) (*NIC, error) {
	switch {
	case s.Device != "":
		l, err := link.ByName(h.Netns, s.Device)
		return h.found(s, l, err)
	case s.HWAddr != "":
		return h.byMAC(s)
	case s.KernelPath != "":
		return h.byKernelPath(s)
	case s.PCI != "":
		return h.byPCI(s)
	case s.Aux != "":
		return h.byAux(s)
	}
	return nil, failure.New(failure.InvalidConfig, `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
}

func (h *Host) found(s Selector, l *link.Link, err error) (*NIC, error) {
	if errors.Is(err, link.ErrNotFound) {
		return nil, fmt.Errorf("%s: %w", s, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return h.NICOf(l), nil
}

func (h *Host) byMAC(s Selector) (*NIC, error) {
	mac, err := net.ParseMAC(s.HWAddr)
	if err != nil {
		return nil, failure.From(err, failure.InvalidConfig, "hwaddr %q", s.HWAddr).Cure("write the MAC address as aa:bb:cc:dd:ee:ff")
	}
	return h.pick(s, func(l *link.Link) bool { return l.HasMAC(mac) })
}

// pick returns the best link for which match returns true. It prefers a link that has a device over
// a VLAN or bridge with the same MAC. Among equal links it prefers the oldest.
func (h *Host) pick(s Selector, match func(*link.Link) bool) (*NIC, error) {
	links, err := link.Links(h.Netns)
	if err != nil {
		return nil, err
	}
	var best *link.Link
	for _, l := range links {
		if match(l) && (best == nil || l.HasParent() && !best.HasParent()) {
			best = l
		}
	}
	if best == nil {
		return h.found(s, nil, link.ErrNotFound)
	}
	return h.found(s, best, nil)
}

func (h *Host) byKernelPath(s Selector) (*NIC, error) {
	const below = "/sys/devices/"
	if clean := filepath.Clean(s.KernelPath); !strings.HasPrefix(clean, below) {
		return nil, failure.New(failure.InvalidConfig, "kernelpath %q must be absolute and begin with %s", s.KernelPath, below).
			Cure("use the path that `readlink -f /sys/class/net/NAME/device` prints")
	}
	return h.byParent(s, strings.TrimPrefix(filepath.Clean(s.KernelPath), "/sys/"))
}

func (h *Host) byPCI(s Selector) (*NIC, error) {
	if !h.IsPCI(s.PCI) {
		return h.found(s, nil, link.ErrNotFound)
	}
	held := &NIC{PCI: s.PCI}
	held.Driver = h.driverOf(held) // "" while no driver is bound
	held.RDMAAlone = held.Driver != "" && h.isRDMAAlone(s.PCI)
	if IsUserspaceDriver(held.Driver) || held.RDMAAlone {
		return held, nil
	}
	return h.byParent(s, filepath.Join("bus/pci/devices", s.PCI))
}

func (h *Host) byAux(s Selector) (*NIC, error) {
	if !h.IsAux(s.Aux) {
		return h.found(s, nil, link.ErrNotFound)
	}
	return h.byParent(s, filepath.Join("bus/auxiliary/devices", s.Aux))
}

// byParent returns the netdev of the device whose directory below sysfs is dir.
//
// byParent first requests the links of that device over rtnetlink. The net/ directories of sysfs
// are not enough, because they show the links of the namespace in which sysfs was mounted, which
// may be another namespace (thick Multus, nested runtimes).
func (h *Host) byParent(s Selector, dir string) (*NIC, error) {
	links, err := link.Links(h.Netns)
	if err != nil {
		return nil, err
	}
	l := h.netdev(links, dir)
	if l == nil {
		err = link.ErrNotFound
	}
	return h.found(s, l, err)
}

// netdev returns the link that is the netdev of the device whose directory below sysfs is dir, or
// nil if none of the links is.
func (h *Host) netdev(links []*link.Link, dir string) *link.Link {
	virtio := h.virtioOf(dir)
	names := append([]string{filepath.Base(dir)}, virtio...)
	var candidates []*link.Link
	for _, l := range links {
		if slices.Contains(names, l.ParentDev) {
			candidates = append(candidates, l)
		}
	}
	if len(candidates) == 0 {
		candidates = h.listed(dir, virtio)
	}
	if len(candidates) == 0 {
		return nil
	}
	// A function in switchdev mode also has the representors of its VFs. In that case the netdev is
	// the uplink, the link that is not a representor. Otherwise the netdev is the first link by
	// name, as in upstream.
	slices.SortStableFunc(candidates, func(a, b *link.Link) int {
		return cmp.Or(cmp.Compare(h.representor(a), h.representor(b)), cmp.Compare(a.Name, b.Name))
	})
	return candidates[0]
}

// virtioOf returns the names of the virtio devices below a device, because a virtio NIC is below
// its PCI function. If the directory cannot be read, virtioOf returns no names.
func (h *Host) virtioOf(dir string) []string {
	entries, _ := os.ReadDir(filepath.Join(h.Sys, dir))
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "virtio") {
			names = append(names, e.Name())
		}
	}
	return names
}

// listed returns the links that sysfs lists below a device. It is needed because kernels before
// 5.14 do not report the parent of a link over rtnetlink.
func (h *Host) listed(dir string, below []string) []*link.Link {
	dirs := []string{filepath.Join(h.Sys, dir, "net")}
	for _, b := range below {
		dirs = append(dirs, filepath.Join(h.Sys, dir, b, "net"))
	}
	var found []*link.Link
	for _, d := range dirs {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			// If the link has another parent, it only happens to have the same name here as the
			// device's netdev has in the namespace that sysfs shows.
			if l, err := link.ByName(h.Netns, e.Name()); err == nil && !l.HasParent() {
				found = append(found, l)
			}
		}
	}
	return found
}

// The regular expressions are compiled on first use. They are rarely used, and a plugin is a
// process that starts anew for each call.
var (
	representorPort = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(c\d+)?pf\d+(vf|sf)\d+$`) })
	pciAddress      = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	})
)

// representor returns 1 if l is the representor of a VF or SF, otherwise 0.
func (h *Host) representor(l *link.Link) int {
	port, err := os.ReadFile(filepath.Join(h.Sys, "class/net", l.Name, "phys_port_name"))
	if err == nil && representorPort().Match(bytes.TrimSpace(port)) {
		return 1
	}
	return 0
}

// pciOf returns the address of the PCI function at or above a link. It is the last PCI address in
// the path of the link's device.
func (h *Host) pciOf(l *link.Link) string {
	switch l.ParentBus {
	case "":
		return ""
	case "pci":
		return l.ParentDev
	}
	real, err := filepath.EvalSymlinks(filepath.Join(h.Sys, "bus", l.ParentBus, "devices", l.ParentDev))
	if err != nil {
		return ""
	}
	pci := ""
	for _, element := range strings.Split(real, "/") {
		if pciAddress().MatchString(element) {
			pci = element
		}
	}
	return pci
}

// IsPCI reports whether id is the address of a PCI device of this host.
func (h *Host) IsPCI(id string) bool {
	return validName(id) && exists(filepath.Join(h.Sys, "bus/pci/devices", id))
}

// IsAux reports whether id is an auxiliary device of this host.
func (h *Host) IsAux(id string) bool {
	return validName(id) && exists(filepath.Join(h.Sys, "bus/auxiliary/devices", id))
}

// validName reports whether id can be the name of a sysfs directory. An ID comes from the runtime,
// and must not contain a path.
func validName(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.ContainsAny(id, "/\x00")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
