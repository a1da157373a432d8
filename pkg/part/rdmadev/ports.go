package rdmadev

import (
	"context"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/linkwait"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Ports is the part that waits until the interface's ports of the RDMA devices are
// active. It follows the part that waits for the carrier.
type Ports struct {
	attachment.Base
	Wait netconf.LinkWait
}

// Name implements [attachment.Part].
func (Ports) Name() string { return "ports" }

// Apply waits for the ports, unless the interface has no carrier: then no port is
// active, and the part before has reported it.
func (p Ports) Apply(ctx context.Context, tx *attachment.Tx) error {
	r := tx.Record.RDMA
	if r == nil || tx.Record.Link == nil || !tx.Record.Link.Up {
		return nil
	}
	core, err := rdma.Open(where(r, tx.Node, tx.Pod))
	if err != nil {
		return err
	}
	defer core.Close()
	for _, d := range r.Devices {
		if d.Port == 0 {
			continue // unknown, or InfiniBand: its carrier implies an active port
		}
		if err := linkwait.For(ctx, tx, p.Wait, func() (lacks string, err error) {
			device, err := findDevice(core, d)
			if err != nil || device == nil {
				return fmt.Sprintf("the RDMA device %s is not in its netns", d.Name), err
			}
			port, err := core.Port(*device, d.Port)
			if err == nil && port.State != rdma.PortActive {
				lacks = fmt.Sprintf("port %d of %s is %s (%s)", d.Port, d.Name, port.State, port.Phys)
			}
			return lacks, err
		}); err != nil {
			return err
		}
		if !tx.Record.Link.Up {
			return nil
		}
	}
	return nil
}
