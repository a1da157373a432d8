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

// nameTries bounds the number of tries to free a name. More than one try may be needed, because
// other processes that return devices rename devices at the same time.
const nameTries = 5

// namePause is the pause between two tries.
const namePause = 20 * time.Millisecond

// RestoreName restores the name of the returned device d, if d was renamed in the pod. Names are
// unique on the machine or, in kernels with names for each namespace, in the namespace. So if a pod
// gave the name to another lent device, that other device is renamed first. If a device that is not
// lent has the name (for example a Soft-RoCE device of a pod), d gets an unused name. Then d
// neither keeps the name that its pod gave it, nor prevents the pod from ending.
func RestoreName(ctx context.Context, n *attachment.Node, core *rdma.Core, home *netns.Netns, d *rdma.Device, name string) error {
	if d == nil || d.Name == name {
		return nil
	}
	err := core.Rename(*d, name)
	for try := 1; try < nameTries && errors.Is(err, unix.EEXIST); try++ {
		if !makeWay(n, home, d, name) {
			_ = wait.For(ctx, namePause) // the other device may be on its way to the host, and will then be renamed
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
		Cure("see `rdma dev` for the device that has the name; rename or delete that device, then `rdma dev set %s name %s`", d.Name, name)
}

// makeWay makes name free if a pod gave that name to another lent device: it renames the other
// device, which gets its own name back when it returns. A device that is not lent keeps the name.
// makeWay reports whether the name may be free now.
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
		return false // a container may not be permitted to open init_net
	}
	defer first.Close()
	return !first.ID.Equal(home.ID) && renameToUnused(first, o, name)
}

// renameToUnused renames the device o in the namespace ns to an unused name, if the device has the
// given name. It reports whether it renamed the device.
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

// renameToFree renames a device to an unused name, and returns that name.
func renameToFree(core *rdma.Core, d rdma.Device) (name string, err error) {
	for try := range nameTries {
		name = fmt.Sprintf("rail-%d", d.Index)
		if try > 0 {
			name += fmt.Sprintf("-%d", try) // a pod may have used the last name too
		}
		if err = core.Rename(d, name); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return name, err
}
