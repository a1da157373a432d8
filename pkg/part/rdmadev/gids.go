package rdmadev

import (
	"context"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// GIDs is the part that waits for the GIDs of the interface's addresses. The record
// of the RDMA devices has them.
type GIDs struct {
	attachment.Base
	Conf netconf.RDMA
}

// Name implements [attachment.Part].
func (GIDs) Name() string { return "gids" }

// Apply waits for the RoCE v2 GID of each address of the interface, on the ports of
// the recorded devices, and records them.
func (p GIDs) Apply(ctx context.Context, tx *attachment.Tx) error {
	r, conf := tx.Record.RDMA, p.Conf
	if r == nil {
		return nil
	}
	r.GIDs = nil
	addresses := tx.Layer3.Addresses()
	if len(addresses) == 0 {
		return nil
	}
	core, err := rdma.Open(where(r, tx.Node, tx.Pod))
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
		device, err := findDevice(core, d)
		if err != nil {
			return err
		}
		if device == nil || device.Protocol != "roce" {
			continue
		}
		for _, ip := range addresses {
			gid, err := core.AwaitGID(ctx, *device, d.Port, ip, tx.IfName)
			if err != nil && conf.RDMA == netconf.RDMARequired {
				return failure.WithCure(failure.Wrap(err, failure.TryAgain, "RDMA device %s", d.Name), `raise "gidTimeout", or see the GID table: rdma link, show_gids`)
			}
			if err != nil {
				tx.Node.Log.Warn("address has no RoCE v2 GID", "device", d.Name, "address", ip, "err", err)
				continue
			}
			r.GIDs = append(r.GIDs, ledger.GID{
				Device: d.Name, Port: d.Port, Index: gid.Index, Value: gid.GID.String(), Address: ip.String(),
			})
		}
	}
	return nil
}
