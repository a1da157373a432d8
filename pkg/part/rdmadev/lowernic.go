package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// lowerNIC is the NIC behind a pod's interface that another plugin made.
type lowerNIC struct {
	parent string     // the NIC's device on the host: a PCI address or an auxiliary device; "" if unknown
	pod    *link.Link // the interface in the pod, nil if there is none (DPDK)
	// netdev is the NIC's netdev: either the interface itself, or the link on which the
	// interface lies. It is nil if neither belongs to the device. The link below a macvlan may
	// be a VLAN or a bond, which has no parent device.
	netdev *link.Link
	netns  *netns.Netns // the netns of netdev
}

func (b *lowerNIC) String() string {
	if b.parent == "" && b.netdev != nil {
		return b.netdev.Describe()
	}
	return "device " + b.parent
}

// unknown reports whether no device was found, and no VLAN or bond either.
func (b *lowerNIC) unknown() bool { return b.parent == "" && !(b.child() && b.netdev.IsStacked()) }

// child reports whether the pod has an interface that lies on the NIC (a macvlan), but not the NIC
// itself.
func (b *lowerNIC) child() bool { return b.netdev != nil && b.netdev != b.pod }

// findBehind finds the NIC by the device ID that the runtime passed. If there is no such ID, it
// finds the NIC by the interface. It ignores an ID that is not a device of this host, because some
// device plugins use numbers of their own.
func findBehind(n *attachment.Node, c *attachment.Call, pod *netns.Netns, conf *netconf.RDMAChained) (*lowerNIC, error) {
	host := n.Host()
	l, err := link.ByName(pod, c.IfName)
	if err != nil && !errors.Is(err, link.ErrNotFound) {
		return nil, err
	}
	b := &lowerNIC{}
	if err == nil {
		b.pod, b.netdev, b.netns = l, l, pod
		if !l.HasParent() && l.Lower != 0 && l.Kind != "veth" {
			b.netdev, b.netns = lower(n, pod, l)
		}
	}
	for _, id := range conf.IDs() {
		if host.IsPCI(id) || host.IsAux(id) {
			b.parent = id
			break
		}
	}
	switch {
	case b.netdev == nil:
	case b.parent == "":
		b.parent = b.netdev.ParentDev
	case !b.isOn(b.parent):
		n.Log.Warn("configured device is not the interface's device", "device", b.parent, "interface", c.IfName, "parentDev", b.netdev.ParentDev)
		b.netdev, b.netns = nil, nil
	}
	if b.unknown() {
		return b, unknownNIC(c, conf)
	}
	return b, nil
}

// isOn reports whether the NIC's netdev, or a link below it, has this parent.
func (b *lowerNIC) isOn(parent string) bool {
	if b.netdev.ParentDev == parent {
		return true
	}
	below, err := link.Below(b.netns, b.netdev)
	return err == nil && slices.ContainsFunc(below, func(l *link.Link) bool { return l.ParentDev == parent })
}

// unknownNIC returns the error for a NIC that was not found, or nil if the configuration does not
// require RDMA.
func unknownNIC(c *attachment.Call, conf *netconf.RDMAChained) error {
	if conf.RDMA.RDMA != netconf.RDMARequired {
		return nil
	}
	what := fmt.Sprintf("the interface %s of netns %s belongs to no device of this host", c.IfName, c.Netns)
	if ids := conf.IDs(); len(ids) > 0 {
		what += fmt.Sprintf(", and the device id %q names no device either", ids[0])
	}
	return failure.New(failure.NICNotFound, `"rdma" is required, but %s`, what).
		Cure(`set "deviceID" to the PCI address or the auxiliary device of the NIC; or set "rdma": "auto" for interfaces without RDMA`)
}

// lower returns the NIC, VLAN or bond on which an interface of the pod is stacked. It also returns
// the netns of that link, which is either the host netns or the pod netns.
func lower(n *attachment.Node, pod *netns.Netns, l *link.Link) (*link.Link, *netns.Netns) {
	ns := pod
	if l.LowerInOtherNetns {
		ns = n.Netns
	}
	if below, err := link.ByIndex(ns, l.Lower); err == nil && (below.HasParent() || below.IsStacked()) {
		return below, ns
	}
	return nil, nil
}

var (
	// errNoDevice is wrapped if the NIC has no RDMA device here.
	errNoDevice = errors.New("it has no RDMA device")
	// errOtherNetns is wrapped if the NIC has an RDMA device, but in another netns. It wraps
	// errNoDevice.
	errOtherNetns = fmt.Errorf("%w here", errNoDevice)
	// errNotForPod is wrapped if the pod cannot use the interface's RDMA device in this mode.
	errNotForPod = errors.New("its RDMA device cannot be used in this pod")
)

// nicOf returns the NIC as it was on the host. If the NIC has a netdev, that netdev is in the pod
// now, and its alias is its name on the host.
func nicOf(n *attachment.Node, b *lowerNIC) *nic.NIC {
	host := n.Host()
	l := &link.Link{Name: b.parent, ParentDev: b.parent, ParentBus: "auxiliary"}
	if host.IsPCI(b.parent) {
		l.ParentBus = "pci"
	}
	if b.netdev != nil {
		l.Name, l.AltNames, l.ParentBus = b.netdev.Alias, b.netdev.AltNames, b.netdev.ParentBus
	}
	return host.NICOf(l)
}

func noDevice(parent string) error {
	return failure.From(errNoDevice, failure.NotAvailable, "device %s", parent).
		Cure(`load its RDMA driver, see "rdma link" for NICs that have one, or set "rdma": "auto"`)
}

// place is a possible place of an RDMA device.
type place struct {
	core *rdma.Core
	ns   *netns.Netns
}

// devicesOf returns the RDMA devices of parent, a device of the host, and the place where they are:
// on the host, or already in the pod if another plugin moved them. It waits for devices that are on
// their way from a dead pod to the host.
func devicesOf(ctx context.Context, tx *attachment.Tx, parent string, places ...place) (found []rdma.Device, in place, err error) {
	host := tx.Node.Host()
	waiting, cancel := context.WithTimeout(ctx, homeWait)
	defer cancel()
	err = wait.Until(waiting, 10*time.Millisecond, func() (done bool, err error) {
		for _, in = range places {
			if found, err = in.core.ByParent(parent); len(found) > 0 || err != nil {
				return true, err
			}
		}
		if !host.HasRDMADevice(parent) {
			return true, noDevice(parent)
		}
		return false, nil
	})
	if wait.Ended(waiting, err) {
		err = failure.From(errOtherNetns, failure.NICLent, "device %s: on the host, and in netns %s", parent, tx.Netns).
			Cure("find the RDMA device with `ip -all netns exec rdma dev`, and end the process that uses it")
	}
	return found, in, err
}

// fits reports whether the RDMA device d belongs to the NIC. A function can have several netdevs
// and several RDMA devices, and an RDMA device can have several ports. If the netdev of a port has
// moved to the pod, the port has no netdev on the host, like a port of InfiniBand. If move is true,
// fits returns an error if the move of d would take RDMA away from a NIC that stays.
func fits(tx *attachment.Tx, in place, d rdma.Device, b *lowerNIC, move bool, allow []string) (bool, error) {
	ports, err := in.core.Ports(d)
	if err != nil {
		return false, err
	}
	vacant, ofNIC := false, false
	var others []rdma.Port
	for _, p := range ports {
		switch {
		case p.Netdev == 0:
			vacant = true
		case b.netdev != nil && p.Netdev == b.netdev.Index && in.ns == b.netns:
			ofNIC = true
		default:
			others = append(others, p)
		}
	}
	switch {
	case b.child():
		return ofNIC, nil
	case b.netdev != nil && !vacant && !ofNIC:
		return false, nil
	case !move:
		return true, nil
	}
	for _, p := range others {
		if err := checkUnused(tx, d, p, b, allow); err != nil {
			return false, err
		}
	}
	return true, nil
}

// checkUnused returns an error if the host needs the RDMA device d for the netdev of the port p. If
// the pod has an interface, the host needs d for every other NIC. If the pod has no interface at
// all, the host needs d for a NIC that a guardrail protects.
func checkUnused(tx *attachment.Tx, d rdma.Device, p rdma.Port, b *lowerNIC, allow []string) error {
	if b.netdev == nil {
		v, err := link.ReadView(tx.Node.Netns, p.Netdev)
		if err == nil {
			err = tx.Node.Host().Guard(v, allow)
		}
		return nic.IfGone(err, p.NetdevName)
	}
	return nic.GuardSharedRDMA(d.Name, tx.IfName, p.NetdevName, allow)
}

// sharedBy returns the record of the RDMA devices that serve the interface's NIC in shared mode. It
// finds the devices by the netdevs of their ports. It returns nil if the NIC has no netdev, or if
// no port has the NIC's netdev, as on InfiniBand.
func (b *lowerNIC) sharedBy() (*ledger.RDMA, error) {
	if b.netdev == nil {
		return nil, nil
	}
	core, err := rdma.Open(b.netns)
	if err != nil {
		return nil, err
	}
	defer core.Close()
	devices, err := core.ServingOf(b.netdev)
	if err != nil {
		return nil, err
	}
	r := &ledger.RDMA{Mode: string(rdma.Shared)}
	for _, d := range devices {
		if d.Port != 0 {
			r.Devices = append(r.Devices, served(core, d, b.netdev, false))
		}
	}
	if len(r.Devices) == 0 {
		return nil, nil
	}
	return r, nil
}

// notePorts records which port of each device belongs to the interface. The kernel reports that
// only in a namespace that has both the device and the interface.
func notePorts(tx *attachment.Tx, b *lowerNIC) error {
	if b.netdev == nil {
		return nil
	}
	core, err := rdma.Open(b.netns)
	if err != nil {
		return err
	}
	defer core.Close()
	for i := range tx.Record.RDMA.Devices {
		d := &tx.Record.RDMA.Devices[i]
		device, err := findDevice(core, *d)
		if err != nil || device == nil {
			return err
		}
		ports, err := core.Ports(*device)
		if err != nil {
			return err
		}
		for _, p := range ports {
			if p.Netdev == b.netdev.Index {
				d.Port = p.Number
			}
		}
	}
	return nil
}
