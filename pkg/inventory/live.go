package inventory

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// live reads the current state of attachments' interfaces and RDMA devices. It opens
// each network namespace once, and lists the RDMA devices in it once.
type live struct {
	host  *link.Netns
	brief bool // only the state of links and ports, with the hardware of links
	views map[string]*view
}

// view is one namespace.
type view struct {
	ns    *link.Netns
	own   bool  // ns is to be closed
	err   error // why ns is nil
	asked bool  // for the rest
	core  *rdma.Core
	// devices are those of the namespace, and unread is why they are not known.
	devices []rdma.Device
	unread  error
}

func (l *live) close() {
	for _, v := range l.views {
		v.core.Close()
		if v.own {
			v.ns.Close()
		}
	}
}

// rdma returns the RDMA devices of the namespace.
func (v *view) rdma() ([]rdma.Device, error) {
	if v.err != nil {
		return nil, v.err
	}
	if !v.asked {
		v.asked = true
		if v.core, v.unread = rdma.Open(v.ns); v.unread == nil {
			v.devices, v.unread = v.core.Devices()
		}
	}
	return v.devices, v.unread
}

// errPodGone means that the pod netns, which lived, has just ended.
var errPodGone = errors.New("the pod netns has just gone")

// fillLink adds the state of the attachment's interface, as far as it is in its pod.
func (l *live) fillLink(a *Attachment, r *ledger.Record) {
	v := l.inPod(r)
	if v.err != nil {
		return
	}
	now := r.InterfaceIn(v.ns)
	if now == nil {
		return
	}
	a.Link, a.adminDown = stateOfLink(now), !now.IsUp()
	if l.brief && r.LendsNetdev() {
		a.hardware, _ = v.ns.Hardware(now.Name) // the record has it as well
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
	v := l.onHost()
	if recorded.Lent {
		v = l.inPod(r)
	}
	devices, err := v.rdma()
	if err != nil {
		return err
	}
	d, err := find(devices, recorded)
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
	if l.brief {
		return nil
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

// onHost returns the host netns, where shared devices are seen.
func (l *live) onHost() *view {
	return l.see("host", func() (*link.Netns, bool, error) { return l.host, false, nil })
}

// inPod returns the pod netns of the record.
func (l *live) inPod(r *ledger.Record) *view {
	return l.see(r.Netns.NetnsID.String()+r.Netns.Path, func() (*link.Netns, bool, error) {
		ns, err := link.FindNetns(r.Netns.NetnsID, r.Netns.Path)
		if err == nil && ns == nil {
			err = errPodGone
		}
		return ns, true, err
	})
}

func (l *live) see(key string, open func() (ns *link.Netns, own bool, err error)) *view {
	if v := l.views[key]; v != nil {
		return v
	}
	v := &view{}
	v.ns, v.own, v.err = open()
	if l.views == nil {
		l.views = map[string]*view{}
	}
	l.views[key] = v
	return v
}

// find returns the recorded device of those in the namespace in which it should be.
func find(devices []rdma.Device, recorded *ledger.RDMADevice) (rdma.Device, error) {
	for _, d := range devices {
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
