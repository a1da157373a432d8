package inventory

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// live reads the current state of attachments' interfaces and RDMA devices.
type live struct {
	Namespaces
	brief bool // only the state of links and ports, with the hardware of links
}

// fillLink adds the state of the attachment's interface, if the interface is in its pod.
func (l *live) fillLink(a *Attachment, r *ledger.Record) {
	pod := l.FindPod(r)
	if pod.Err != nil {
		return
	}
	now := r.InterfaceIn(pod.Netns)
	if now == nil {
		return
	}
	a.Link, a.adminDown = stateOfLink(now), !now.IsUp()
	if l.brief && r.LendsNetdev() {
		a.hardware, _ = device.ReadHardware(pod.Netns, now.Name) // if that fails, the hardware in the record is used
	}
}

// fill adds the current state to the RDMA devices of the record. The errors are about parts that
// could not be read. Such parts are shown as unknown.
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
	ns, d, err := l.DeviceOf(r, recorded, l.FindPod)
	if err != nil {
		return err
	}
	if port := portOf(recorded, d); port != 0 {
		p, err := ns.Core.Port(d, port)
		if err != nil {
			return err
		}
		shown.Port, shown.State, shown.PhysState = port, p.State.String(), p.Phys.String()
	}
	if l.brief {
		return nil
	}
	u, err := ns.Core.Uverbs(d)
	if err != nil && !errors.Is(err, rdma.ErrNoCharDev) {
		return err
	}
	if u.Name != shown.Uverbs {
		shown.Uverbs, shown.UverbsAtADD = u.Name, shown.Uverbs
	}
	var errs []error
	for i := range shown.GIDs {
		err := shown.GIDs[i].find(ns.Core, d, shown.Port, r.IfName)
		if recorded.Netdev == "" || len(r.RDMA.Devices) == 1 { // a bond's member has no GIDs as long as the kernel does not use that member
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// portOf returns the port of the attachment, or 0 if the device has several ports and it is not
// known which one belongs to the attachment.
func portOf(recorded *ledger.RDMADevice, d rdma.Device) uint32 {
	if recorded.Port == 0 && d.Ports == 1 {
		return 1
	}
	return recorded.Port
}

// find finds the current index of the GID. The kernel may change the index, for example while the
// interface is down for a moment.
func (g *GID) find(core *rdma.Core, d rdma.Device, port uint32, ifName string) error {
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
