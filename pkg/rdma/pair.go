package rdma

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Pair is a port of an RDMA device, and its interface.
type Pair struct {
	Device    string
	Port      uint32
	Netdev    string
	HasSignal bool // the interface is up and has a carrier
}

// Pairs returns the ports in a namespace that have an interface there, by device and
// port.
func Pairs(ns *link.Netns) ([]Pair, error) {
	core, err := Open(ns)
	if err != nil {
		return nil, err
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		return nil, err
	}
	links, err := ns.Links()
	if err != nil {
		return nil, err
	}
	var found []Pair
	for _, d := range devices {
		ports, err := core.Ports(d)
		if errors.Is(err, ErrNotFound) {
			continue // it was moved meanwhile
		}
		if err != nil {
			return nil, err
		}
		found = append(found, pairsOf(d, ports, links)...)
	}
	slices.SortFunc(found, func(a, b Pair) int {
		return cmp.Or(byNumber(a.Device, b.Device), cmp.Compare(a.Port, b.Port), byNumber(a.Netdev, b.Netdev))
	})
	return found, nil
}

// pairsOf returns the interfaces of a device's ports. The kernel names the interface of
// an Ethernet port, but not that of an InfiniBand port (IPoIB). The latter is found by the
// parent device that both share, so only for a device with one port.
func pairsOf(d Device, ports []Port, links []*link.Link) []Pair {
	var found []Pair
	for _, p := range ports {
		for _, l := range links {
			named := p.Netdev != 0 && l.Index == p.Netdev
			ipoib := p.Netdev == 0 && len(ports) == 1 && p.LinkLayer == "InfiniBand" &&
				l.Encap == "infiniband" && l.Lower == 0 && l.ParentDev != "" && l.ParentDev == d.ParentDev
			if named || ipoib {
				found = append(found, Pair{d.Name, p.Number, l.Name, l.HasCarrier()})
			}
		}
	}
	return found
}

// byNumber compares names so that mlx5_2 comes before mlx5_10.
func byNumber(a, b string) int {
	nameA, nameB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if nameA != nameB {
		return cmp.Compare(a, b)
	}
	// Text that is no number, or too long for one, is 0.
	numberA, _ := strconv.ParseUint(a[len(nameA):], 10, 64)
	numberB, _ := strconv.ParseUint(b[len(nameB):], 10, 64)
	return cmp.Or(cmp.Compare(numberA, numberB), cmp.Compare(a, b))
}
