package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Partition is the part that checks that the port of the lent InfiniBand device is a member of the
// network's partition. It comes after the part that waits for the link, because the subnet manager
// fills the table of keys when it makes the port active.
type Partition struct {
	attachment.Base
	Key      uint16        // 0 means any partition
	Required bool          // if the port is not a member, ADD fails; without Required it only logs that
	Wait     time.Duration // for the fabric manager, if Required
}

// Name implements [attachment.Part].
func (Partition) Name() string { return "partition" }

// Apply implements [attachment.Part].
func (p Partition) Apply(ctx context.Context, tx *attachment.Tx) error {
	r := tx.Record.RDMA
	if p.Key == 0 || r == nil {
		return nil
	}
	core, err := rdma.Open(netnsOf(r, tx.Node, tx.Pod))
	if err != nil {
		return err
	}
	defer core.Close()
	bound := time.Duration(0)
	if p.Required {
		bound = p.Wait
	}
	for _, d := range r.Devices {
		device, err := findDevice(core, d)
		if err != nil {
			return err
		}
		if device == nil || !device.IsInfiniBand() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		err = p.member(ctx, core, *device, max(d.Port, 1))
		switch {
		case err == nil:
		case errors.Is(err, errNoMember) && !p.Required:
			tx.Node.Log.Warn("port is not a member of the partition", "err", err)
		default:
			return err
		}
	}
	return nil
}

// errNoMember is wrapped by the error about a port that is not in the partition.
var errNoMember = errors.New("not a member")

// member waits until the port is a member of the partition.
func (p Partition) member(ctx context.Context, core *rdma.Core, d rdma.Device, port uint32) error {
	var keys []ibaddr.PKey
	err := wait.Until(ctx, 50*time.Millisecond, func() (member bool, err error) {
		_, member, keys, err = core.Member(d, port, p.Key)
		return member, err
	})
	if !wait.Ended(ctx, err) {
		return err
	}
	err = fmt.Errorf("%w of partition %#04x: its keys are %v", errNoMember, (ibaddr.PKey{Key: p.Key}).Partition(), keys)
	return failure.From(err, failure.TryAgain, "port %d of the RDMA device %s", port, d.Name).
		Cure(`make its GUID a member in the fabric manager (ib-kubernetes does so through UFM), or remove "pkey"`)
}
