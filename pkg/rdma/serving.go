package rdma

import (
	"errors"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Serving is an RDMA device that serves an interface.
type Serving struct {
	Device
	// Port is the port of the interface. It is 0 if the device names no netdev of any port, because
	// the port is an InfiniBand port, or its netdev is in another namespace.
	Port uint32
	// Netdev is the netdev of that port: the interface itself, or a link below the interface. It is
	// nil if Port is 0.
	Netdev *link.Link
	// Others are the netdevs of the device's other ports. The interface does not use them.
	Others []string
}

// ServingOf returns the RDMA devices that serve the interface l of the namespace. A device serves l
// if the netdev of a port is l itself, or a link by which packets of l leave ([link.Below]). If
// there are no such devices, ServingOf returns the devices with the same parent that name no
// netdev.
//
// Usually the RDMA device of a NIC has the same parent as the NIC. But some devices have another
// function as their parent (Alibaba's erdma, Microsoft's mana), and a VLAN or bond has no parent.
// Software devices, such as Soft-RoCE's, have no parent at all, so ServingOf does not find them.
func (c *Core) ServingOf(l *link.Link) ([]Serving, error) {
	direct, err := c.ofParent(l.ParentDev, []*link.Link{l})
	if err != nil || slices.ContainsFunc(direct, Serving.named) || len(direct) > 0 && l.Encap == "infiniband" {
		return direct, err
	}
	found, err := c.through(l)
	if err != nil || len(found) > 0 {
		return found, err
	}
	return direct, nil
}

func (s Serving) named() bool { return s.Port != 0 }

func (s Serving) unnamed() bool { return s.Port == 0 }

// through returns the devices that serve l by the netdevs of their ports. A node may have hundreds
// of devices, so through first tries the devices that have the same parents as the links.
func (c *Core) through(l *link.Link) ([]Serving, error) {
	var all map[uint32]Device
	err := c.inNetns(func() (err error) { all, err = c.listed(); return err })
	if err != nil || len(all) == 0 {
		return nil, err
	}
	below, err := link.Below(c.ns, l)
	if err != nil {
		return nil, err
	}
	var found []Serving
	var tried []string
	var failed error // a failure of one member of a bond does not hide the other members
	for _, b := range below {
		if slices.Contains(tried, b.ParentDev) {
			continue
		}
		tried = append(tried, b.ParentDev)
		direct, err := c.ofParent(b.ParentDev, below)
		failed = errors.Join(failed, err)
		found = append(found, slices.DeleteFunc(direct, Serving.unnamed)...)
	}
	if len(found) > 0 {
		return found, nil
	}
	if failed != nil {
		return nil, failed
	}
	err = c.inNetns(func() error {
		found = among(all, func(d Device) (Serving, error) {
			s, err := c.serving(d, below)
			if err == nil && s.Port != 0 {
				s.Device, err = c.whole(d.Index)
			}
			return s, err
		})
		return nil
	})
	return found, err
}

// among returns the devices, by index, that serve one of the links. It leaves out software devices.
// It also leaves out devices that cannot be read: they have been moved meanwhile, or their hardware
// fails, and most of them belong to other NICs.
func among(all map[uint32]Device, serving func(Device) (Serving, error)) []Serving {
	var found []Serving
	for _, index := range slices.Sorted(maps.Keys(all)) {
		if s, err := serving(all[index]); err == nil && s.Port != 0 && s.ParentDev != "" {
			found = append(found, s)
		}
	}
	return found
}

// ofParent returns the devices with this parent that serve one of the links, and the devices with
// this parent that name no netdev.
func (c *Core) ofParent(parent string, links []*link.Link) ([]Serving, error) {
	if parent == "" {
		return nil, nil
	}
	devices, err := c.ByParent(parent)
	if err != nil {
		return nil, err
	}
	var found []Serving
	err = c.inNetns(func() error {
		for _, d := range devices {
			s, err := c.serving(d, links)
			if err != nil {
				return err
			}
			if s.Port != 0 || len(s.Others) == 0 {
				found = append(found, s)
			}
		}
		return nil
	})
	return found, err
}

// serving compares the netdevs of the device's ports with the links.
func (c *Core) serving(d Device, links []*link.Link) (Serving, error) {
	s := Serving{Device: d}
	for number := uint32(1); number <= min(d.Ports, maxPorts); number++ {
		p, err := c.portOf(d, number)
		if err != nil {
			return Serving{}, err
		}
		s.note(p, links)
	}
	return s, nil
}

func (s *Serving) note(p Port, links []*link.Link) {
	i := slices.IndexFunc(links, func(l *link.Link) bool { return l.Index == p.Netdev })
	switch {
	case p.Netdev == 0:
	case i < 0:
		s.Others = append(s.Others, p.NetdevName)
	case s.Port == 0:
		s.Port, s.Netdev = p.Number, links[i]
	}
}
