package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// behind is the NIC behind the interface of a pod that somebody else made.
type behind struct {
	parent string     // its device on the host: a PCI address or an auxiliary device; "" if none is known
	pod    *link.Link // the interface in the pod, nil if there is none (DPDK)
	// netdev is the netdev of the NIC's port: the interface itself, or the NIC
	// that it lies on. nil if neither is the device's.
	netdev *link.Link
	in     *link.Netns // where netdev is
}

func (b *behind) String() string { return "device " + b.parent }

// child says whether the NIC itself is not the pod's: a macvlan lies on it.
func (b *behind) child() bool { return b.netdev != nil && b.netdev != b.pod }

// behind finds the NIC: by the id that the runtime gives, or else by the
// interface. An id that names nothing of this host (a device plugin's own
// number) is passed over.
func (a *Adding) behind(conf *netconf.RDMAChained) (*behind, error) {
	l, err := a.Pod.ByName(a.IfName)
	if err != nil && !errors.Is(err, link.ErrNotFound) {
		return nil, err
	}
	b := &behind{}
	if err == nil {
		b.pod, b.netdev, b.in = l, l, a.Pod
		if !l.HasParent() && l.Lower != 0 && l.Kind != "veth" {
			b.netdev, b.in = a.lower(l)
		}
	}
	for _, id := range conf.IDs() {
		if a.Node.Host.IsPCI(id) || a.Node.Host.IsAux(id) {
			b.parent = id
			break
		}
	}
	switch {
	case b.netdev == nil:
	case b.parent == "":
		b.parent = b.netdev.ParentDev
	case b.netdev.ParentDev != b.parent:
		a.Node.Log.Warn("the configuration's device is not the interface's", "device", b.parent, "interface", a.IfName, "of", b.netdev.ParentDev)
		b.netdev, b.in = nil, nil
	}
	if b.parent == "" {
		return b, a.unknownNIC(conf)
	}
	return b, nil
}

// unknownNIC is no error where the configuration can do without RDMA.
func (a *Adding) unknownNIC(conf *netconf.RDMAChained) error {
	if conf.RDMA.RDMA != netconf.RDMARequired {
		return nil
	}
	what := fmt.Sprintf("the interface %s of netns %s belongs to no device of this host", a.IfName, a.Netns)
	if ids := conf.IDs(); len(ids) > 0 {
		what += fmt.Sprintf(", and the device id %q names none", ids[0])
	}
	return cnierr.New(cnierr.NICNotFound, `give its NIC's PCI address or auxiliary device as "deviceID"; or set "rdma": "auto" for interfaces without RDMA`,
		`"rdma" is required, but %s`, what)
}

// lower gives the NIC that an interface of the pod lies on, where it is: on the
// host, or in the pod as well.
func (a *Adding) lower(l *link.Link) (*link.Link, *link.Netns) {
	ns := a.Pod
	if l.LowerAway {
		ns = a.Node.Host.Netns
	}
	if nic, err := ns.ByIndex(l.Lower); err == nil && nic.HasParent() {
		return nic, ns
	}
	return nil, nil
}

// claimRDMA decides which RDMA devices the attachment gets and records them.
// Nothing is recorded when there are none and the configuration allows that.
func (a *Adding) claimRDMA(ctx context.Context, conf *netconf.RDMAChained, b *behind) error {
	if b.parent == "" {
		return nil
	}
	if bad := slices.IndexFunc(conf.Allow, func(k string) bool { return !slices.Contains(nic.Overrides, k) }); bad >= 0 {
		return cnierr.New(cnierr.InvalidConfig, "use "+strings.Join(nic.Overrides, ", "), `"allow" has no key %q`, conf.Allow[bad])
	}
	n := a.Node
	if holder, _ := n.rdmaHolder(b.parent, a.Key); holder != nil && !n.alive(holder) {
		// They are home already, or on their way.
		if err := n.endOf(ctx, holder, homeWait); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := n.Ledger.LockNIC(ctx, "rdma "+b.parent)
	if err != nil {
		return err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	holder, unread := n.rdmaHolder(b.parent, a.Key)
	if holder != nil {
		return lentTo(holder)
	}
	found, err := a.findChained(ctx, conf, b)
	switch {
	case unread == nil:
	case elsewhere(found, err):
		return errors.Join(err, unread)
	default:
		n.Log.Warn("a record cannot be read; whosever it is, nobody has the RDMA devices", "of", b.parent, "err", unread)
	}
	switch {
	case err == nil:
	case conf.RDMA.RDMA == netconf.RDMARequired:
		return err
	case errors.Is(err, rdma.ErrNoRDMA), errors.Is(err, errNoDevice):
		return nil
	case errors.Is(err, errSharedDevice), errors.Is(err, errNotForPod):
		n.Log.Warn("the pod gets no RDMA", "interface", a.IfName, "err", err)
		return nil
	default:
		return err
	}
	a.Record.RDMA = found
	a.committed = true
	return errors.Join(n.step("record"), n.Ledger.Put(a.Record))
}

// elsewhere says whether what findChained gave means that the NIC has RDMA devices
// that are not on the host.
func elsewhere(found *ledger.RDMA, err error) bool {
	if err != nil {
		return errors.Is(err, errAway)
	}
	return found.Mode == string(rdma.Exclusive) && !slices.ContainsFunc(found.Devices, func(d ledger.RDMADevice) bool { return d.Lent })
}

// rdmaHolder gives the record of another attachment that holds RDMA devices of
// the host's device parent, or nil and why records could not be read: it may be
// one of these.
func (n *Node) rdmaHolder(parent string, mine ledger.Key) (holder *ledger.Record, unread error) {
	records, errs := n.Ledger.List()
	for _, r := range records {
		if r.Key == mine || r.RDMA == nil || r.Phase == ledger.Freeing || !n.Ledger.OfThisBoot(r) {
			continue
		}
		if slices.ContainsFunc(r.RDMA.Devices, func(d ledger.RDMADevice) bool { return d.Lent && d.ParentDev == parent }) {
			return r, nil
		}
	}
	return nil, errors.Join(errs...)
}

// heldByAnother says, for a DEL, whether another attachment holds RDMA devices of
// parent. No DEL waits for a record of others that cannot be read.
func (n *Node) heldByAnother(parent string, mine ledger.Key) bool {
	holder, unread := n.rdmaHolder(parent, mine)
	if unread != nil {
		n.Log.Warn("a record cannot be read: it may hold the RDMA devices", "of", parent, "err", unread)
	}
	return holder != nil
}

var (
	// errNoDevice: the NIC has no RDMA device here.
	errNoDevice = errors.New("it has no RDMA device")
	// errAway is an errNoDevice of a NIC that has one somewhere else.
	errAway = fmt.Errorf("%w here", errNoDevice)
	// errNotForPod: the interface's RDMA device cannot be the pod's in this mode.
	errNotForPod = errors.New("its RDMA device cannot be used in this pod")
)

// findChained finds the RDMA devices of the NIC.
func (a *Adding) findChained(ctx context.Context, conf *netconf.RDMAChained, b *behind) (*ledger.RDMA, error) {
	host, err := rdma.Open(a.Node.Host.Netns)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.NotAvailable, `load the NIC's RDMA driver (mlx5_ib, bnxt_re, irdma, …), or set "rdma": "auto"`, "%s", b)
	}
	defer host.Close()
	pod, err := rdma.Open(a.Pod)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	mode, err := host.Mode()
	if err != nil {
		return nil, err
	}
	exclusive := mode == rdma.Exclusive
	if exclusive && b.child() {
		return nil, cnierr.Wrap(errNotForPod, cnierr.NotAvailable, rdma.AtBoot(rdma.Shared)+"; or lend whole NICs with host-device",
			"RDMA is in exclusive mode, and %s only lies on %s, which stays on the host", a.IfName, b.netdev.Name)
	}
	devices, in, err := a.devicesOf(ctx, b.parent, place{host, a.Node.Host.Netns}, place{pod, a.Pod})
	if err != nil {
		return nil, err
	}
	move := exclusive && in.ns == a.Node.Host.Netns
	if move && b.netdev != nil && b.netdev.Encap == "infiniband" {
		return nil, cnierr.Wrap(errNotForPod, cnierr.NotAvailable,
			rdma.AtBoot(rdma.Shared)+`; or use "rdmaIsolation" of ib-sriov-cni`,
			"RDMA is in exclusive mode, and the kernel would destroy the InfiniBand interface %s when its RDMA device moves", a.IfName)
	}
	if move {
		if err := a.Node.permit(a.Node.nicOf(b), conf.Allow); err != nil {
			return nil, err
		}
	}
	r := &ledger.RDMA{Mode: string(mode)}
	for _, d := range devices {
		ok, err := a.fits(in, d, b, move, conf.Allow)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		r.Devices = append(r.Devices, recordOf(in.core, d, move))
	}
	if len(r.Devices) == 0 {
		return nil, noDevice(b.parent)
	}
	return r, nil
}

// nicOf gives the NIC as the host knew it: its netdev is in the pod, if it has
// one, and what it was called on the host is its alias.
func (n *Node) nicOf(b *behind) *nic.NIC {
	l := &link.Link{Name: b.parent, ParentDev: b.parent, ParentBus: "auxiliary"}
	if n.Host.IsPCI(b.parent) {
		l.ParentBus = "pci"
	}
	if b.netdev != nil {
		l.Name, l.AltNames, l.ParentBus = b.netdev.Alias, b.netdev.AltNames, b.netdev.ParentBus
	}
	return n.Host.Of(l)
}

func noDevice(parent string) error {
	return cnierr.Wrap(errNoDevice, cnierr.NotAvailable,
		`load its RDMA driver, see "rdma link" for NICs that have one, or set "rdma": "auto"`, "device %s", parent)
}

// place is where an RDMA device may be.
type place struct {
	core *rdma.Core
	ns   *link.Netns
}

// devicesOf lists the RDMA devices of a host's device, where they are: on the
// host, or in the pod already, when somebody else moved them. It waits for those
// that are on their way home from a pod that died.
func (a *Adding) devicesOf(ctx context.Context, parent string, places ...place) ([]rdma.Device, place, error) {
	for deadline := time.Now().Add(homeWait); ; time.Sleep(10 * time.Millisecond) {
		for _, in := range places {
			if found, err := in.core.ByParent(parent); len(found) > 0 || err != nil {
				return found, in, err
			}
		}
		switch {
		case !a.Node.hasRDMA(parent):
			return nil, place{}, noDevice(parent)
		case time.Now().After(deadline) || ctx.Err() != nil:
			return nil, place{}, cnierr.Wrap(errAway, cnierr.NICLent, "find it with `ip -all netns exec rdma dev`, and end what has it",
				"device %s: on the host, and in netns %s", parent, a.Netns)
		}
	}
}

// hasRDMA says whether a driver has made an RDMA device of this one, wherever
// that is: the directory in sysfs stays, empty, while it is in a pod.
func (n *Node) hasRDMA(parent string) bool {
	found, _ := filepath.Glob(filepath.Join(n.Host.Sys, "bus", "*", "devices", parent, "infiniband"))
	return len(found) > 0
}

// fits says whether the RDMA device belongs to the NIC. A function can have
// several netdevs and RDMA devices, and an RDMA device several ports. The port
// of a netdev that has left for the pod shows none on the host, as a port of
// InfiniBand does. One that is to move must not take RDMA away from a NIC that
// stays.
func (a *Adding) fits(in place, d rdma.Device, b *behind, move bool, allow []string) (bool, error) {
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
		case b.netdev != nil && p.Netdev == b.netdev.Index && in.ns == b.in:
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
		if err := a.spare(d, p, b, allow); err != nil {
			return false, err
		}
	}
	return true, nil
}

// spare fails when the host needs the netdev of the port p with its RDMA device:
// another NIC than the pod's, or, where the pod has no interface at all, one
// that a guardrail protects.
func (a *Adding) spare(d rdma.Device, p rdma.Port, b *behind, allow []string) error {
	if b.netdev == nil {
		l, err := a.Node.Host.Netns.ByIndex(p.Netdev)
		if err != nil {
			return err
		}
		return a.Node.Host.Guard(l, allow)
	}
	if slices.Contains(allow, nic.AllowSharedRDMA) {
		return nil
	}
	return cnierr.Wrap(errSharedDevice, cnierr.NICProtected,
		fmt.Sprintf(`lend both, set "rdma": "off", or add "allow": [%q] if %s may lose RDMA`, nic.AllowSharedRDMA, p.NetdevName),
		"RDMA device %s of %s (%s)", d.Name, a.IfName, p.NetdevName)
}

// notePorts records which port of each device is the interface's: the kernel
// says it only where both are.
func (a *Adding) notePorts(b *behind) error {
	if b.netdev == nil {
		return nil
	}
	core, err := rdma.Open(b.in)
	if err != nil {
		return err
	}
	defer core.Close()
	for i := range a.Record.RDMA.Devices {
		d := &a.Record.RDMA.Devices[i]
		device, err := one(core, *d)
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
