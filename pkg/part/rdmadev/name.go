package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// nameTries bounds the tries to free a name: other processes that return
// devices rename concurrently.
const nameTries = 5

// namePause is the pause between them.
const namePause = 20 * time.Millisecond

// RestoreName restores the name of a returned device, if it was renamed in the
// pod. If a pod gave this name to another lent device, that one is renamed
// first: names are unique on the machine or, in kernels with names for each
// namespace, in the namespace. If a device that is not lent has the name, as a
// Soft-RoCE device of a pod may, d gets an unused name: it must not keep the one
// that its pod gave it, nor its pod from ending.
func RestoreName(ctx context.Context, n *attachment.Node, core *rdma.Core, home *netns.Netns, d *rdma.Device, name string) error {
	if d == nil || d.Name == name {
		return nil
	}
	err := core.Rename(*d, name)
	for try := 1; try < nameTries && errors.Is(err, unix.EEXIST); try++ {
		if !makeWay(n, home, d, name) {
			_ = wait.For(ctx, namePause) // the other device may be on its way, and about to be renamed
		}
		err = core.Rename(*d, name)
	}
	if errors.Is(err, unix.EEXIST) {
		var free string
		if free, err = renameToFree(core, *d); err == nil {
			n.Log.Warn("RDMA device has returned under another name, because its own is taken", "device", name, "name", free, "parentDev", d.ParentDev,
				"cure", fmt.Sprintf("rename or delete the other device, then `rdma dev set %s name %s`", free, name))
			return nil
		}
	}
	return failure.From(err, failure.NotReturned, "the RDMA device %s was returned as %s", name, d.Name).
		Cure("`rdma dev` shows which device has the name; rename or delete that one, then `rdma dev set %s name %s`", d.Name, name)
}

// makeWay renames the lent device that a pod gave this name to; its own return
// restores its name. A device that is not lent keeps the name. makeWay reports
// whether the name may be free now.
func makeWay(n *attachment.Node, home *netns.Netns, d *rdma.Device, name string) bool {
	records, _ := n.Ledger.Held(ledger.Anywhere, func(r *ledger.Record) bool { return r.RDMA != nil }) // a device with an unreadable record stays
	for _, r := range records {
		for _, o := range r.RDMA.Devices {
			if !o.Lent || o.Name == name || o.ParentDev == d.ParentDev && o.NodeGUID == d.NodeGUID {
				continue
			}
			if renamedAway(r, o, home, name) {
				return true
			}
		}
	}
	return false
}

// renamedAway looks for the lent device o in its pod, on the host and in
// init_net, and calls renameToUnused. It reports whether the device was
// renamed.
func renamedAway(r *ledger.Record, o ledger.RDMADevice, home *netns.Netns, name string) bool {
	if pod, _ := netns.Find(r.Netns.ID, r.Netns.Path); pod != nil {
		defer pod.Close()
		if renameToUnused(pod, o, name) {
			return true
		}
	}
	if renameToUnused(home, o, name) {
		return true
	}
	first, err := netns.Open(netns.InitPath)
	if err != nil {
		return false // a container may not open it
	}
	defer first.Close()
	return !first.ID.Equal(home.ID) && renameToUnused(first, o, name)
}

// renameToUnused renames the device o of the namespace to an unused name, if it is called
// name. It reports whether it did.
func renameToUnused(ns *netns.Netns, o ledger.RDMADevice, name string) bool {
	core, err := rdma.Open(ns)
	if err != nil {
		return false
	}
	defer core.Close()
	device, err := findDevice(core, o)
	if err != nil || device == nil || device.Name != name {
		return false
	}
	_, err = renameToFree(core, *device)
	return err == nil
}

// renameToFree renames a device to an unused name, and returns that.
func renameToFree(core *rdma.Core, d rdma.Device) (name string, err error) {
	for try := range nameTries {
		name = fmt.Sprintf("rail-%d", d.Index)
		if try > 0 {
			name += fmt.Sprintf("-%d", try) // a pod may have taken that name too
		}
		if err = core.Rename(d, name); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return name, err
}
