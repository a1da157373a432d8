package netdevs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// Pair is a port of an RDMA device, and the interface of that port.
type Pair struct {
	Device    string
	Parent    string // the device's parent device, "" if it has none
	Port      uint32
	State     rdma.PortState
	LinkLayer string // "Ethernet" or "InfiniBand"
	Netdev    string // "" if the port has no interface in the namespace
	HasSignal bool   // the interface is up and has a carrier
	Child     bool   // the interface is an IPoIB child, which lies on another interface of the port
}

// Pairs returns the ports in a namespace that have an interface there, sorted by device and port.
func Pairs(ns *netns.Netns) ([]Pair, error) {
	core, err := rdma.Open(ns)
	if err != nil {
		return nil, err
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		return nil, err
	}
	links, err := link.Links(ns)
	if err != nil {
		return nil, err
	}
	all, err := PairsOf(core, devices, links)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p Pair) bool { return p.Netdev == "" }), nil
}

// PairsOf returns the ports of these devices of the namespace, sorted by device and port. Each port
// has its interface from links, or no interface. PairsOf returns the ports that can be read, and an
// error for the others. A device that has left the namespace is not an error.
func PairsOf(c *rdma.Core, devices []rdma.Device, links []*link.Link) ([]Pair, error) {
	var found []Pair
	var errs []error
	for _, d := range devices {
		ports, err := c.Ports(d)
		if errors.Is(err, rdma.ErrNotFound) {
			continue // the device was moved meanwhile
		}
		errs = append(errs, err)
		found = append(found, ofDevice(d, ports, guidsOf(c, d, ports), links)...)
	}
	slices.SortFunc(found, func(a, b Pair) int {
		return cmp.Or(byNumber(a.Device, b.Device), cmp.Compare(a.Port, b.Port), byNumber(a.Netdev, b.Netdev))
	})
	return found, errors.Join(errs...)
}

// guidsOf returns the GUIDs of the InfiniBand ports that have one, by the number of the port. GUIDs
// that cannot be read are missing, because sysfs is not mounted everywhere.
func guidsOf(c *rdma.Core, d rdma.Device, ports []rdma.Port) map[uint32]ibaddr.GUID {
	found := map[uint32]ibaddr.GUID{}
	for _, p := range ports {
		if p.LinkLayer != "InfiniBand" {
			continue
		}
		if guid, err := c.PortGUID(d, p.Number); err == nil && guid != 0 && guid != ^ibaddr.GUID(0) {
			found[p.Number] = guid
		}
	}
	return found
}

// ofDevice returns the ports of a device with their interfaces. The kernel names the interface of an
// Ethernet port, but not the interfaces of an InfiniBand port (IPoIB). The address of such an
// interface has the port's GUID. If the device has only one port, the same parent device is enough.
func ofDevice(d rdma.Device, ports []rdma.Port, guids map[uint32]ibaddr.GUID, links []*link.Link) []Pair {
	var found []Pair
	for _, p := range ports {
		pair := Pair{Device: d.Name, Parent: d.ParentDev, Port: p.Number, State: p.State, LinkLayer: p.LinkLayer}
		alone := true
		for _, l := range links {
			named := p.Netdev != 0 && l.Index == p.Netdev
			guid, known := guids[p.Number]
			sameParent := l.ParentDev != "" && l.ParentDev == d.ParentDev
			ipoib := p.Netdev == 0 && p.LinkLayer == "InfiniBand" && l.Encap == "infiniband" &&
				(sameParent && len(ports) == 1 && l.Lower == 0 || known && guidOf(l) == guid && (sameParent || !l.HasParent()))
			if named || ipoib {
				pair.Netdev, pair.HasSignal, pair.Child, alone = l.Name, l.HasCarrier(), ipoib && !l.HasParent(), false
				found = append(found, pair)
			}
		}
		if alone {
			found = append(found, pair)
		}
	}
	return found
}

// guidOf returns the GUID of the port of an InfiniBand interface. The permanent address still has
// that GUID after somebody has set another address.
func guidOf(l *link.Link) ibaddr.GUID {
	for _, mac := range [][]byte{l.PermMAC, l.MAC} {
		if len(mac) == 20 {
			return ibaddr.GUID(binary.BigEndian.Uint64(mac[12:]))
		}
	}
	return 0
}

// byNumber compares names so that mlx5_2 comes before mlx5_10.
func byNumber(a, b string) int {
	nameA, nameB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if nameA != nameB {
		return cmp.Compare(a, b)
	}
	// Text that is not a number, or is too long for one, counts as 0.
	numberA, _ := strconv.ParseUint(a[len(nameA):], 10, 64)
	numberB, _ := strconv.ParseUint(b[len(nameB):], 10, 64)
	return cmp.Or(cmp.Compare(numberA, numberB), cmp.Compare(a, b))
}
