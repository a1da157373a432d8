package rdmadev

import (
	"errors"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// isServed reports whether an RDMA device of the host serves l although the device does not belong
// to l's parent device. Such a device belongs to a link below l, to a bond of which l is a member,
// or to another function. If the RDMA devices cannot be read, isServed logs a warning and returns
// false.
func isServed(n *attachment.Node, l *link.Link) bool {
	if !n.Host().HasRDMACore() {
		return false
	}
	core, err := rdma.Open(n.Netns)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return false
	}
	var devices []rdma.Serving
	var others []string
	if err == nil {
		defer core.Close()
		devices, err = core.ServingOf(l)
	}
	if err == nil {
		_, others, err = ofBond(core, n.Netns, l)
	}
	if err != nil {
		n.Log.Warn("cannot read the RDMA devices, so the pod gets none", "nic", l.Name, "err", err)
		return false
	}
	return len(devices)+len(others) > 0
}

// ofBond returns the RDMA device that serves l as a member of a bond, and the other members that
// the same device serves. If the hardware aggregates the members, they share one device, and the
// netdev of the device's port is either the bond or one of the members.
func ofBond(core *rdma.Core, host *netns.Netns, l *link.Link) (device string, others []string, err error) {
	if l.Master == 0 {
		return "", nil, nil
	}
	links, err := link.Links(host)
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(links, func(b *link.Link) bool { return b.Index == l.Master && (b.Kind == "bond" || b.Kind == "team") })
	if i < 0 {
		return "", nil, nil
	}
	devices, err := core.ServingOf(links[i])
	if err != nil {
		return "", nil, err
	}
	device, others = sharedBy(devices, links, l)
	return device, others, nil
}

// sharedBy returns the device that serves l, and the other members of l's bond that the same device
// serves. devices are the devices of the bond. A member without a device of its own is served by
// the device of the other members.
func sharedBy(devices []rdma.Serving, links []*link.Link, l *link.Link) (device string, others []string) {
	deviceOf := map[int]string{} // each member's own device, by ifindex
	for _, d := range devices {
		if d.Netdev != nil && d.Netdev.Index != l.Master {
			deviceOf[d.Netdev.Index] = d.Name
		}
	}
	device = deviceOf[l.Index]
	if device == "" {
		if len(devices) != 1 {
			return "", nil
		}
		device = devices[0].Name
	}
	for _, m := range links {
		if m.Master == l.Master && m.Index != l.Index && (deviceOf[m.Index] == "" || deviceOf[m.Index] == device) {
			others = append(others, m.Name)
		}
	}
	return device, others
}

// served returns the record of the device d, which serves l.
func served(core *rdma.Core, d rdma.Serving, l *link.Link, lent bool) ledger.RDMADevice {
	r := recordOf(core, d.Device, lent)
	r.Port = d.Port
	if d.Netdev != nil && d.Netdev.Index != l.Index {
		r.Netdev = d.Netdev.Name
	}
	return r
}

// legs returns the devices of r if each of them belongs to a different member of a bond, so that
// one of them is enough for the interface's RDMA. Otherwise it returns nil.
func legs(r *ledger.RDMA) []ledger.RDMADevice {
	for _, d := range r.Devices {
		if d.Netdev == "" || len(r.Devices) == 1 {
			return nil
		}
	}
	return r.Devices
}
