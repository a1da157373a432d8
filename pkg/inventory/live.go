package inventory

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// live reads the current state of the RDMA devices of attachments. It opens
// each network namespace once.
type live struct {
	host  *link.Netns
	views map[string]*view
}

// view is the RDMA core in one namespace.
type view struct {
	ns      *link.Netns // to be closed; nil for the host's
	core    *rdma.Core
	devices []rdma.Device
	err     error // why the others are nil
}

func (l *live) close() {
	for _, v := range l.views {
		v.core.Close()
		v.ns.Close()
	}
}

// fill completes the record's RDMA devices. Its errors are about parts that
// could not be read, which are shown as unknown.
func (l *live) fill(p *RDMA, r *ledger.Record) []error {
	var errs []error
	for i := range p.Devices {
		d := &p.Devices[i]
		if err := l.device(d, r, &r.RDMA.Devices[i]); err != nil {
			if d.State == "" {
				d.State = Unknown
			}
			errs = append(errs, fmt.Errorf("%s: RDMA device %s: %w", r.Holder(), d.Name, err))
		}
	}
	return errs
}

func (l *live) device(shown *RDMADevice, r *ledger.Record, recorded *ledger.RDMADevice) error {
	v := l.of(r, recorded)
	if v.err != nil {
		return v.err
	}
	d, err := v.find(recorded)
	if err != nil {
		return err
	}
	if port := portOf(recorded, d); port != 0 {
		p, err := v.core.Port(d, port)
		if err != nil {
			return err
		}
		shown.Port, shown.State, shown.PhysState = port, p.State.String(), p.Phys.String()
	}
	u, err := v.core.Uverbs(d)
	if err != nil && !errors.Is(err, rdma.ErrNoCharDev) {
		return err
	}
	if u.Name != shown.Uverbs {
		shown.Uverbs, shown.UverbsAtADD = u.Name, shown.Uverbs
	}
	var errs []error
	for i := range shown.GIDs {
		err := shown.GIDs[i].look(v.core, d, shown.Port, r.IfName)
		if recorded.Netdev == "" || len(r.RDMA.Devices) == 1 { // a bond's member has no GIDs while the kernel does not use it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// portOf returns the port of the attachment, 0 if it is unknown which of
// several it is.
func portOf(recorded *ledger.RDMADevice, d rdma.Device) uint32 {
	if recorded.Port == 0 && d.Ports == 1 {
		return 1
	}
	return recorded.Port
}

// look finds the current index of the GID: the kernel may change it, for
// example while the interface is down for a moment.
func (g *GID) look(core *rdma.Core, d rdma.Device, port uint32, ifName string) error {
	address, err := netip.ParseAddr(g.Address)
	if err != nil {
		return err
	}
	e, err := core.FindGID(d, port, address, ifName)
	if err != nil {
		g.Missing = true
		return err
	}
	g.Index, g.Value = e.Index, e.GID.String()
	return nil
}

// of returns the namespace from which the device is seen: the pod's if the
// device is lent, the host's if it is shared.
func (l *live) of(r *ledger.Record, d *ledger.RDMADevice) *view {
	if !d.Lent {
		return l.see("host", func() (*link.Netns, error) { return nil, nil })
	}
	return l.see(r.Netns.NetnsID.String()+r.Netns.Path, func() (*link.Netns, error) {
		ns, err := link.FindNetns(r.Netns.NetnsID, r.Netns.Path)
		if err == nil && ns == nil {
			err = fmt.Errorf("the pod netns %s has just gone", r.Netns.Path)
		}
		return ns, err
	})
}

func (l *live) see(key string, open func() (*link.Netns, error)) *view {
	if v := l.views[key]; v != nil {
		return v
	}
	v := &view{}
	if v.ns, v.err = open(); v.err == nil {
		ns := v.ns
		if ns == nil {
			ns = l.host
		}
		v.core, v.err = rdma.Open(ns)
	}
	if v.err == nil {
		v.devices, v.err = v.core.Devices()
	}
	if l.views == nil {
		l.views = map[string]*view{}
	}
	l.views[key] = v
	return v
}

func (v *view) find(recorded *ledger.RDMADevice) (rdma.Device, error) {
	for _, d := range v.devices {
		if d.NodeGUID == recorded.NodeGUID && d.ParentDev == recorded.ParentDev {
			return d, nil
		}
	}
	where := "on the host"
	if recorded.Lent {
		where = "in the pod netns"
	}
	return rdma.Device{}, fmt.Errorf("%w %s: it was unplugged, its driver was unloaded, or it is just being moved", rdma.ErrNotFound, where)
}
