package rdmadev

import (
	"context"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/linkwait"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Ports is the part that waits until the interface's RDMA ports are active. It comes after the part
// that waits for the carrier.
type Ports struct {
	attachment.Base
	Wait netconf.LinkWait
}

// Name implements [attachment.Part].
func (Ports) Name() string { return "ports" }

// Apply waits for the ports. It does not wait if the interface has no carrier, because then no port
// is active, and the previous part has already reported that.
func (p Ports) Apply(ctx context.Context, tx *attachment.Tx) error {
	r := tx.Record.RDMA
	alone := tx.Record.Loan != nil && tx.Record.Loan.RDMAAlone
	if r == nil || !alone && (tx.Record.Link == nil || !tx.Record.Link.Up) {
		return nil
	}
	core, err := rdma.Open(netnsOf(r, tx.Node, tx.Pod))
	if err != nil {
		return err
	}
	defer core.Close()
	ofBond := legs(r) // it is enough if one of them is active
	for _, d := range r.Devices {
		if d.Port == 0 {
			continue // the port is unknown, or it is InfiniBand, where a carrier implies an active port
		}
		some := []ledger.RDMADevice{d}
		if ofBond != nil {
			some = ofBond
		}
		if err := linkwait.For(ctx, tx, p.Wait, func() (string, error) { return inactive(core, some) }); err != nil {
			return err
		}
		if !tx.Record.Link.Up {
			return nil
		}
	}
	return nil
}

// Carrier is the part of the chained plugin that waits for the carrier of the interface,
// which another plugin has set up. It comes before [Ports].
type Carrier struct {
	attachment.Base
	Chained *Chained
}

// Name implements [attachment.Part].
func (Carrier) Name() string { return "carrier" }

// Apply waits for the carrier, if the attachment has RDMA devices and the pod an interface.
func (p Carrier) Apply(ctx context.Context, tx *attachment.Tx) error {
	if tx.Record.RDMA == nil || p.Chained.nic == nil || p.Chained.nic.pod == nil {
		return nil
	}
	return linkwait.Carrier(ctx, tx, p.Chained.Conf.LinkWait(), p.Chained.nic.pod.Index)
}

// inactive returns "" if the port of one of the devices is active. Otherwise it returns what the
// last device lacks.
func inactive(core *rdma.Core, devices []ledger.RDMADevice) (lacks string, err error) {
	for _, d := range devices {
		device, err := findDevice(core, d)
		if err != nil {
			return "", err
		}
		if device == nil {
			lacks = fmt.Sprintf("the RDMA device %s is not in its netns", d.Name)
			continue
		}
		port, err := core.Port(*device, d.Port)
		if err != nil {
			return "", err
		}
		if port.State == rdma.PortActive {
			return "", nil
		}
		lacks = fmt.Sprintf("port %d of %s is %s (%s)", d.Port, d.Name, port.State, port.Phys)
	}
	return lacks, nil
}
