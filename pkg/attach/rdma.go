package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// moveWait bounds one move of an RDMA device, and the wait for the lock round
// it: a node with eight NICs moves eight at most before it is our turn.
const moveWait = 30 * time.Second

// findRDMA finds the RDMA devices of a NIC of ns and what is to become of
// them. It gives nil when there is nothing to do: the configuration says off,
// or auto and the NIC has none.
func (a *Adding) findRDMA(l *link.Link, conf netconf.RDMA, allow []string) (*ledger.RDMA, error) {
	host := &a.Node.Host
	if conf.RDMA == netconf.RDMAOff || conf.RDMA == netconf.RDMAAuto && !host.HasRDMA(l) {
		return nil, nil
	}
	required := conf.RDMA == netconf.RDMARequired
	core, err := rdma.Open(host.Netns)
	if errors.Is(err, rdma.ErrNoRDMA) && !required {
		return nil, nil
	}
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.NotAvailable, "load the NIC's RDMA driver (mlx5_ib, bnxt_re, irdma, …), or set \"rdma\": \"off\"", "%s", l.Name)
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return nil, err
	}
	if mode == rdma.Shared {
		allow = []string{nic.AllowSharedRDMA} // nothing moves, so nobody loses it
	}
	found, err := ofNIC(core, l, mode, allow)
	if err != nil {
		if required || !errors.Is(err, errSharedDevice) {
			return nil, err
		}
		a.Node.Log.Warn("the RDMA device stays on the host", "nic", l.Name, "err", err)
		return nil, nil
	}
	if len(found) == 0 {
		if required {
			return nil, cnierr.New(cnierr.NotAvailable, "load its RDMA driver, or choose a NIC that has one (`rdma link`)",
				`"rdma" is required, but %s has no RDMA device in this netns`, l.Name)
		}
		return nil, nil
	}
	return &ledger.RDMA{Mode: string(mode), Devices: found}, nil
}

// errSharedDevice: an RDMA device serves two NICs.
var errSharedDevice = errors.New("it also serves another NIC")

// ofNIC lists the RDMA devices of the NIC l. A function can have several
// netdevs and RDMA devices, and an RDMA device several ports: a device is the
// NIC's if one of its ports is, or if it names no netdev at all (InfiniBand).
func ofNIC(core *rdma.Core, l *link.Link, mode rdma.Mode, allow []string) ([]ledger.RDMADevice, error) {
	devices, err := core.ByParent(l.ParentDev)
	if err != nil {
		return nil, err
	}
	var found []ledger.RDMADevice
	for _, d := range devices {
		ports, err := core.Ports(d)
		if err != nil {
			return nil, err
		}
		mine, others := uint32(0), ""
		for _, p := range ports {
			switch p.Netdev {
			case 0:
			case l.Index:
				mine = p.Number
			default:
				others = p.NetdevName
			}
		}
		if mine == 0 && others != "" {
			continue
		}
		if others != "" && !slices.Contains(allow, nic.AllowSharedRDMA) {
			return nil, cnierr.Wrap(errSharedDevice, cnierr.NICProtected,
				fmt.Sprintf(`lend both, set "rdma": "off", or add "allow": [%q] if %s may lose RDMA`, nic.AllowSharedRDMA, others),
				"RDMA device %s of %s (%s)", d.Name, l.Name, others)
		}
		r := recordOf(core, d, mode == rdma.Exclusive)
		r.Port = mine
		found = append(found, r)
	}
	return found, nil
}

// recordOf returns the record of an RDMA device, with its settings if it is lent.
func recordOf(core *rdma.Core, d rdma.Device, lent bool) ledger.RDMADevice {
	r := ledger.RDMADevice{Name: d.Name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev, Lent: lent}
	if u, err := core.Uverbs(d); err == nil {
		r.Uverbs = u.Name
	}
	if lent {
		r.Settings = core.Settings(d)
	}
	return r
}

// one gives the recorded device, under whatever name and index, or nil when it
// is not in the core's namespace.
func one(core *rdma.Core, r ledger.RDMADevice) (*rdma.Device, error) {
	d, err := core.ByIdentity(r.NodeGUID, r.ParentDev)
	if errors.Is(err, rdma.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// lendRDMA moves the recorded RDMA devices into the pod netns, one after
// another under the node's lock.
func (a *Adding) lendRDMA(ctx context.Context) error {
	r := a.Record.RDMA
	if r == nil || !slices.ContainsFunc(r.Devices, func(d ledger.RDMADevice) bool { return d.Lent }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	return a.Node.withCores(ctx, a.Node.Host.Netns, a.Pod, func(host, pod *rdma.Core) error {
		for _, d := range r.Devices {
			if !d.Lent {
				continue
			}
			device, err := one(host, d)
			if err == nil && device == nil {
				err = rdma.ErrNotFound
			}
			if err == nil {
				_, err = host.Move(ctx, *device, pod)
			}
			if err != nil {
				return cnierr.Wrap(err, cnierr.Kernel, cureOfMove(err), "RDMA device %s", d.Name)
			}
		}
		return nil
	})
}

func cureOfMove(err error) string {
	switch {
	case errors.Is(err, rdma.ErrImmovable):
		return `lend its NICs in shared mode, or set "rdma": "off" for a NIC without RDMA`
	case errors.Is(err, rdma.ErrShared):
		return "the mode changed while the NIC was lent; try again"
	}
	return ""
}

// withCores opens the RDMA core in two namespaces and takes the node's lock
// round what f moves between them.
func (n *Node) withCores(ctx context.Context, from, to *link.Netns, f func(from, to *rdma.Core) error) error {
	lock, err := n.Ledger.LockRDMA(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	source, err := rdma.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := rdma.Open(to)
	if err != nil {
		return err
	}
	defer target.Close()
	return f(source, target)
}

// rdmaHome brings the lent RDMA devices of a record back, from the pod netns
// (nil if it is gone), or from init_net when the host netns is another. It
// goes before the NIC's netdev, because on InfiniBand the netdev is made anew
// where the RDMA device is.
func (n *Node) rdmaHome(ctx context.Context, r *ledger.Record, pod, home *link.Netns, wait time.Duration) error {
	if r.RDMA == nil {
		return nil
	}
	var errs []error
	for _, d := range r.RDMA.Devices {
		if !d.Lent {
			continue
		}
		err := n.deviceHome(ctx, r, d, pod, home, wait)
		if err == nil && len(d.Settings) > 0 {
			n.restoreRDMA(r, d, home)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restoreRDMA restores the settings of a returned device, and reports those that
// cannot be restored.
func (n *Node) restoreRDMA(r *ledger.Record, d ledger.RDMADevice, home *link.Netns) {
	core, err := rdma.Open(home)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return // its driver was unloaded, and the settings went with it
	}
	var device *rdma.Device
	if err == nil {
		defer core.Close()
		device, err = one(core, d)
	}
	switch {
	case err != nil:
		n.report(r, nil, []link.Changed{{Setting: "RDMA device " + d.Name, Err: err}}, nil)
	case device != nil:
		left := core.Restore(*device, d.Settings)
		for i := range left {
			left[i].Setting = "RDMA device " + d.Name + ": " + left[i].Setting
		}
		n.report(r, nil, left, nil)
	}
}

func (n *Node) deviceHome(ctx context.Context, r *ledger.Record, d ledger.RDMADevice, pod, home *link.Netns, wait time.Duration) error {
	if pod != nil {
		moved, err := n.moveDeviceHome(ctx, d, pod, home)
		if moved || err != nil {
			return err
		}
	}
	core, err := rdma.Open(home)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return nil // its driver was unloaded: there is no device any more
	}
	if err != nil {
		return err
	}
	defer core.Close()
	deadline := time.Now().Add(wait)
	for {
		device, err := one(core, d)
		if device != nil || err != nil {
			return errors.Join(err, n.nameAgain(core, home, device, d.Name))
		}
		if moved, err := n.moveDeviceFromInit(ctx, d, home); moved || err != nil {
			return err
		}
		if !n.bound(d.ParentDev) || !n.hasRDMA(d.ParentDev) {
			return nil // unplugged, or its driver unloaded
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			if wait > 0 && n.deviceGone(r, core, d) {
				n.Log.Warn("the RDMA device no longer exists, its driver has made another one", "device", d.Name, "of", d.ParentDev)
				return nil
			}
			return cnierr.New(cnierr.NotHome, "find it with `ip -all netns exec rdma dev`; a sweep or `railctl gc` tries again",
				"the RDMA device %s (%s) is neither on the host nor in its pod netns", d.Name, d.ParentDev)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// moveDeviceFromInit moves the device to a home that is not init_net, where the
// kernel put it. It says false if it is not there.
func (n *Node) moveDeviceFromInit(ctx context.Context, d ledger.RDMADevice, home *link.Netns) (bool, error) {
	first, err := link.OpenNetns(initNetns)
	if err != nil {
		return false, nil // a container may not look there
	}
	defer first.Close()
	if first.ID.Equal(home.ID) {
		return false, nil
	}
	return n.moveDeviceHome(ctx, d, first, home)
}

// deviceGone says whether the RDMA device that was lent no longer exists, after it
// was nowhere for long: its function has another one.
func (n *Node) deviceGone(r *ledger.Record, core *rdma.Core, d ledger.RDMADevice) bool {
	if !n.hasOneNIC(d.ParentDev) {
		return false
	}
	others, err := core.ByParent(d.ParentDev)
	return err == nil && len(others) > 0 || n.anotherHas(r, func(other *ledger.Record) bool {
		return other.RDMA != nil && slices.ContainsFunc(other.RDMA.Devices, func(o ledger.RDMADevice) bool {
			return o.Lent && o.ParentDev == d.ParentDev && o.NodeGUID != d.NodeGUID
		})
	})
}

// moveDeviceHome moves the device if it is in from. It says false if it is not.
func (n *Node) moveDeviceHome(ctx context.Context, d ledger.RDMADevice, from, home *link.Netns) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveWait)
	defer cancel()
	moved := false
	err := n.withCores(ctx, from, home, func(source, target *rdma.Core) error {
		device, err := one(source, d)
		if err != nil || device == nil {
			return err
		}
		mode, err := source.Mode()
		if err != nil {
			return err
		}
		if mode == rdma.Shared {
			// Every namespace has it, and nothing moves.
			moved = true
			return n.nameAgain(target, home, device, d.Name)
		}
		arrived, err := source.Move(ctx, *device, target)
		var changed *rdma.UverbsChanged
		if errors.As(err, &changed) {
			n.Log.Warn("an RDMA device came home with another uverbs number", "device", d.Name, "err", err)
			err = nil
		}
		if err != nil {
			return cnierr.Wrap(err, cnierr.NotHome, cureOfMove(err), "RDMA device %s", d.Name)
		}
		moved = true
		return n.nameAgain(target, home, &arrived.Device, d.Name)
	})
	if errors.Is(err, rdma.ErrNoRDMA) {
		return false, nil
	}
	return moved, err
}

// awaitGIDs waits for the RoCE v2 GID of each address of the interface, on the
// ports of the recorded devices, and records them. ns is where the devices are
// seen from.
func (a *Adding) awaitGIDs(ctx context.Context, ns *link.Netns, conf netconf.RDMA, l3 *layer3) error {
	r := a.Record.RDMA
	if r == nil {
		return nil
	}
	r.GIDs = nil
	addresses := l3.addresses()
	if len(addresses) == 0 {
		return nil
	}
	core, err := rdma.Open(ns)
	if err != nil {
		return err
	}
	defer core.Close()
	ctx, cancel := context.WithTimeout(ctx, conf.Wait())
	defer cancel()
	for _, d := range r.Devices {
		if d.Port == 0 {
			continue // InfiniBand: its GIDs do not come from addresses
		}
		device, err := one(core, d)
		if err != nil {
			return err
		}
		if device == nil || device.Protocol != "roce" {
			continue
		}
		for _, ip := range addresses {
			gid, err := core.AwaitGID(ctx, *device, d.Port, ip, a.IfName)
			if err != nil && conf.RDMA == netconf.RDMARequired {
				return cnierr.Wrap(err, cnierr.TryAgain, `raise "gidTimeout", or see the GID table: rdma link, show_gids`, "RDMA device %s", d.Name)
			}
			if err != nil {
				a.Node.Log.Warn("the address has no RoCE v2 GID", "device", d.Name, "address", ip, "err", err)
				continue
			}
			r.GIDs = append(r.GIDs, ledger.GID{
				Device: d.Name, Port: d.Port, Index: gid.Index, Value: gid.GID.String(), Address: ip.String(),
			})
		}
	}
	return nil
}

// addresses gives the interface's addresses without their subnets.
func (l3 *layer3) addresses() []netip.Addr {
	var found []netip.Addr
	for _, list := range [][]*ipConfig{l3.carriedIPs, l3.ips} {
		for _, ip := range list {
			if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				found = append(found, addr.Unmap())
			}
		}
	}
	return found
}

// checkRDMA compares what the attachment has of RDMA with what ADD found: the
// mode, the device in its namespace, its port, its GIDs, and that a process of
// the pod can open it. l is the pod's interface, nil if it has none.
//
// A port without a cable is as ADD may have found it, and comes back by itself:
// that is a mismatch only where RDMA is required, or when l has a carrier.
func (n *Node) checkRDMA(r *ledger.Record, pod *link.Netns, l *link.Link, conf netconf.RDMA) error {
	if r == nil || r.RDMA == nil {
		return nil
	}
	ns := n.Host.Netns
	if r.RDMA.Mode == string(rdma.Exclusive) {
		ns = pod
	}
	core, err := rdma.Open(ns)
	if err != nil {
		return cnierr.Wrap(err, cnierr.Mismatch, "load the driver again and recreate the pod", "interface %s", r.IfName)
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return err
	}
	if string(mode) != r.RDMA.Mode {
		return mismatch("RDMA was in %s mode when %s was attached, and is in %s mode now", r.RDMA.Mode, r.IfName, mode)
	}
	active := conf.RDMA == netconf.RDMARequired || l != nil && l.HasCarrier()
	for _, d := range r.RDMA.Devices {
		if err := n.checkDevice(core, r, d, pod, active); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) checkDevice(core *rdma.Core, r *ledger.Record, d ledger.RDMADevice, pod *link.Netns, active bool) error {
	device, err := one(core, d)
	if err != nil {
		return err
	}
	if device == nil {
		return mismatch("the RDMA device %s of %s is not in its netns", d.Name, r.IfName)
	}
	if d.Port != 0 && active {
		port, err := core.Port(*device, d.Port)
		if err != nil {
			return err
		}
		if port.State != rdma.PortActive {
			return cnierr.New(cnierr.Mismatch, "see its cable and its switch's port", "port %d of %s is %s (%s)", d.Port, d.Name, port.State, port.Phys)
		}
	}
	for _, g := range r.RDMA.GIDs {
		address, err := netip.ParseAddr(g.Address)
		if err != nil || g.Device != d.Name {
			continue
		}
		if _, err := core.FindGID(*device, g.Port, address, r.IfName); err != nil {
			return cnierr.Wrap(err, cnierr.Mismatch, "recreate the pod", "RDMA device %s", d.Name)
		}
	}
	uverbs, err := core.Uverbs(*device)
	if errors.Is(err, rdma.ErrNoCharDev) {
		return nil // ib_uverbs is not loaded: nobody is to use verbs
	}
	if err != nil {
		return err
	}
	return pod.Do(func() error { return openable(uverbs.Path()) })
}

// openable says whether a process where the calling thread is can open the
// char device. A node without it (udev makes it on the host) proves nothing.
func openable(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return mismatch("the pod cannot open %s: %v", path, err)
	}
	return unix.Close(fd)
}

// availableRDMA says why the RDMA part of an ADD on a NIC of this host could
// not work now; where RDMA is not required ADD works without. shares is true for
// a plugin whose pods use the device in common, which exclusive mode does not
// allow.
func (n *Node) availableRDMA(conf netconf.RDMA, shares bool) error {
	if conf.RDMA != netconf.RDMARequired {
		return nil
	}
	core, err := rdma.Open(n.Host.Netns)
	if err != nil {
		return cnierr.Wrap(err, cnierr.NotAvailable, "load the NIC's RDMA driver", `"rdma" is required`)
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil || mode == rdma.Shared || !shares {
		return err
	}
	return cnierr.New(cnierr.NotAvailable, rdma.AtBoot(rdma.Shared), "RDMA is in exclusive mode, in which macvlan pods cannot use it")
}
