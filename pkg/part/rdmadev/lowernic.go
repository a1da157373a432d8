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
	parent string     // its device on the host: a PCI address or an auxiliary device; "" if unknown
	pod    *link.Link // the interface in the pod, nil if there is none (DPDK)
	// netdev is the NIC's netdev: the interface itself, or the link that it lies
	// on; nil if neither is the device's. The link below a macvlan may be a VLAN
	// or a bond, which has no parent.
	netdev *link.Link
	netns  *netns.Netns // where netdev is
}

func (b *lowerNIC) String() string {
	if b.parent == "" && b.netdev != nil {
		return b.netdev.Describe()
	}
	return "device " + b.parent
}

// unknown reports whether neither a device nor a VLAN or bond was found.
func (b *lowerNIC) unknown() bool { return b.parent == "" && !(b.child() && b.netdev.IsStacked()) }

// child reports whether the pod has an interface on the NIC (a macvlan) and not the NIC
// itself.
func (b *lowerNIC) child() bool { return b.netdev != nil && b.netdev != b.pod }

// findBehind finds the NIC: by the runtime's ID, or else by the interface. It
// ignores an ID that is no device of this host (a device plugin's own number).
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

// unknownNIC returns an error only if the configuration requires RDMA.
func unknownNIC(c *attachment.Call, conf *netconf.RDMAChained) error {
	if conf.RDMA.RDMA != netconf.RDMARequired {
		return nil
	}
	what := fmt.Sprintf("the interface %s of netns %s belongs to no device of this host", c.IfName, c.Netns)
	if ids := conf.IDs(); len(ids) > 0 {
		what += fmt.Sprintf(", and the device id %q names none", ids[0])
	}
	return failure.New(failure.NICNotFound, `"rdma" is required, but %s`, what).
		Cure(`set "deviceID" to its NIC's PCI address or auxiliary device; or set "rdma": "auto" for interfaces without RDMA`)
}

// lower returns the NIC, VLAN or bond on which an interface of the pod is stacked, and
// its netns: the host's, or the pod's as well.
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
	// errNoDevice: the NIC has no RDMA device here.
	errNoDevice = errors.New("it has no RDMA device")
	// errOtherNetns is an errNoDevice of a NIC that has one somewhere else.
	errOtherNetns = fmt.Errorf("%w here", errNoDevice)
	// errNotForPod: the interface's RDMA device cannot be the pod's in this mode.
	errNotForPod = errors.New("its RDMA device cannot be used in this pod")
)

// nicOf returns the NIC as it was on the host: its netdev, if it has one, is in the pod
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

// devicesOf returns the RDMA devices of a host's device, and their place: on
// the host, or already in the pod if another plugin moved them. It waits for
// those on their way to the host from a dead pod.
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
			Cure("find it with `ip -all netns exec rdma dev`, and end the process that has it")
	}
	return found, in, err
}

// fits reports whether the RDMA device belongs to the NIC. A function can have
// several netdevs and RDMA devices, and an RDMA device several ports. The port
// of a netdev that has left for the pod shows none on the host, like a port of
// InfiniBand. A device that is to move must not take RDMA away from a NIC that
// stays.
func fits(tx *attachment.Tx, in place, d rdma.Device, b *lowerNIC, move bool, allow []string) (bool, error) {
	ports, err := in.core.Ports(d)
	if err != nil {
		return false, err
	}
	vacant, mine := false, false
	var others []rdma.Port
	for _, p := range ports {
		switch {
		case p.Netdev == 0:
			vacant = true
		case b.netdev != nil && p.Netdev == b.netdev.Index && in.ns == b.netns:
			mine = true
		default:
			others = append(others, p)
		}
	}
	switch {
	case b.child():
		return mine, nil
	case b.netdev != nil && !vacant && !mine:
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

// checkUnused fails if the host needs the netdev of the port p with its RDMA device:
// another NIC than the pod's, or, if the pod has no interface at all, one that
// a guardrail protects.
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

// sharedBy returns the record of the RDMA devices that serve the interface's NIC in shared
// mode, found by the netdevs of their ports. It is nil if no port has such a netdev, as on
// InfiniBand, or if the NIC has no netdev.
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

// notePorts records the interface's port of each device: the kernel reports it
// only in the namespace that has both.
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
