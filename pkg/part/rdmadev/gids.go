package rdmadev

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// GIDs is the part that waits for the GIDs of the interface's addresses, and records them with the
// RDMA devices.
type GIDs struct {
	attachment.Base
	Conf netconf.RDMA
}

// Name implements [attachment.Part].
func (GIDs) Name() string { return "gids" }

// Apply waits until each address of the interface has a RoCE v2 GID on the ports of the recorded
// devices, and records these GIDs. If RDMA is required and a device, or all devices of a bond, have
// left the netns, Apply returns an error, even if the interface has no address.
func (p GIDs) Apply(ctx context.Context, tx *attachment.Tx) error {
	r := tx.Record.RDMA
	if r == nil {
		return nil
	}
	r.GIDs = nil
	if len(tx.Layer3.Addresses()) == 0 && p.Conf.RDMA != netconf.RDMARequired {
		return nil
	}
	core, err := rdma.Open(netnsOf(r, tx.Node, tx.Pod))
	if err != nil {
		return err
	}
	defer core.Close()
	ctx, cancel := context.WithTimeout(ctx, p.Conf.Wait())
	defer cancel()
	groups := [][]ledger.RDMADevice{legs(r)}
	if groups[0] == nil {
		groups = slices.Collect(slices.Chunk(r.Devices, 1))
	}
	for _, alternatives := range groups {
		if err := p.await(ctx, tx, core, alternatives); err != nil {
			return err
		}
	}
	for _, alternatives := range groups { // this comes last, because a driver may reset a device during the waits
		if err := p.present(core, alternatives); err != nil {
			return err
		}
	}
	return nil
}

// present returns an error if RDMA is required and none of the devices is in the netns.
func (p GIDs) present(core *rdma.Core, alternatives []ledger.RDMADevice) error {
	if p.Conf.RDMA != netconf.RDMARequired || len(alternatives) == 0 {
		return nil
	}
	for _, d := range alternatives {
		if device, err := findDevice(core, d); err != nil || device != nil {
			return err
		}
	}
	return failure.From(rdma.ErrNotFound, failure.TryAgain, "RDMA device %s has left the netns", alternatives[0].Name).
		Cure("see the kernel log: the driver may have reset the device")
}

// await waits until each address has a GID on one of the devices, and records the GIDs.
func (p GIDs) await(ctx context.Context, tx *attachment.Tx, core *rdma.Core, alternatives []ledger.RDMADevice) error {
	addresses := tx.Layer3.Addresses()
	if len(addresses) == 0 {
		return nil
	}
	var ports []port
	for _, d := range alternatives {
		if d.Port == 0 {
			continue // on InfiniBand the GIDs do not come from addresses
		}
		device, err := findDevice(core, d)
		if err != nil {
			return err
		}
		if device != nil && device.Protocol == "roce" {
			ports = append(ports, port{*device, d})
		}
	}
	if len(ports) == 0 {
		return nil
	}
	r := tx.Record.RDMA
	for _, ip := range addresses {
		found, err := awaitGID(ctx, core, ports, ip, tx.IfName)
		if peer, ok := peerOf(tx, ip); err != nil && ok {
			err = failure.New(failure.TryAgain, "the address %s has the peer %s, and the kernel makes the GID from the address of the peer", ip, peer).
				Cure("configure the address without a peer")
		}
		if err != nil && p.Conf.RDMA == netconf.RDMARequired {
			return failure.From(err, failure.TryAgain, "RDMA device %s", ports[0].Name).Cure(`raise "gidTimeout", or see the GID table: rdma link, show_gids`)
		}
		if err != nil {
			tx.Node.Log.Warn("address has no RoCE v2 GID", "device", ports[0].Name, "address", ip, "err", err)
		}
		r.GIDs = append(r.GIDs, found...)
	}
	return nil
}

// peerOf returns the other end of a point-to-point IPv4 address of the interface.
func peerOf(tx *attachment.Tx, ip netip.Addr) (peer netip.Addr, ok bool) {
	if tx.Link == nil || !ip.Is4() {
		return peer, false
	}
	return link.PeerOf(tx.Pod, tx.Link.Index, ip)
}

// port is a recorded device as it is now.
type port struct {
	rdma.Device
	recorded ledger.RDMADevice
}

// legWait bounds the wait for the GIDs of a bond's other members after the first GID. The kernel
// adds the GIDs of all members at the same time, but it adds none for a member that it does not
// use.
const legWait = 200 * time.Millisecond

// awaitGID waits until one of the ports has the GID of the address. Then it waits a moment longer
// for the other ports.
func awaitGID(ctx context.Context, core *rdma.Core, ports []port, ip netip.Addr, ifName string) ([]ledger.GID, error) {
	first, err := awaitFirst(ctx, core, ports, ip, ifName)
	if err != nil {
		return nil, err
	}
	rest, cancel := context.WithTimeout(ctx, legWait)
	defer cancel()
	var found []ledger.GID
	for i, p := range ports {
		gid := first.GIDEntry
		if i != first.port {
			if gid, err = core.AwaitGID(rest, p.Device, p.recorded.Port, ip, ifName); err != nil {
				continue
			}
		}
		found = append(found, ledger.GID{
			Device: p.recorded.Name, Port: p.recorded.Port, Index: gid.Index, Value: gid.GID.String(), Address: ip.String(),
		})
	}
	return found, nil
}

type firstGID struct {
	ibaddr.GIDEntry
	port int // index of its port
}

// awaitFirst waits until one of the ports has the GID of the address.
func awaitFirst(ctx context.Context, core *rdma.Core, ports []port, ip netip.Addr, ifName string) (firstGID, error) {
	const turn = 50 * time.Millisecond
	for i := 0; ; i = (i + 1) % len(ports) {
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if len(ports) > 1 {
			waiting, cancel = context.WithTimeout(ctx, turn)
		}
		gid, err := core.AwaitGID(waiting, ports[i].Device, ports[i].recorded.Port, ip, ifName)
		ended := waiting.Err() != nil
		cancel()
		if err == nil || !ended || ctx.Err() != nil {
			return firstGID{gid, i}, err
		}
	}
}
