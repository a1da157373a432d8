package vf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// First releases a virtual function that got GUIDs before its interface and its RDMA device are released: when the
// driver is bound anew, both are on the host again, whatever the pod did to them.
type First struct{ Part }

// Recorded implements [attachment.Part].
func (First) Recorded(r *ledger.Record) bool { return r.Rebinds() }

// Release implements [attachment.Part].
func (First) Release(ctx context.Context, releasing *attachment.Releasing) error {
	releasing.Leaving(ctx) // the interface ends with its driver
	err := Restore(ctx, releasing)
	if err == nil {
		releasing.Silent()
	}
	return err
}

// guids are the node and the port GUID of an InfiniBand virtual function.
type guids struct{ node, port uint64 }

// guidsOf returns the GUIDs that the function has on the host: those that its physical function had given it when its
// driver was bound. ok is false if its RDMA device is not there.
func guidsOf(host *nic.Host, pci string) (g guids, ok bool, err error) {
	core, err := rdma.Open(host.Netns)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return g, false, nil
	}
	if err != nil {
		return g, false, err
	}
	defer core.Close()
	devices, err := core.ByParent(pci)
	if err != nil || len(devices) != 1 {
		return g, false, err
	}
	table, err := core.GIDs(devices[0], 1)
	if err != nil || len(table.Entries) == 0 {
		return guids{node: uint64(devices[0].NodeGUID)}, err == nil, err // of no port: as if it had none
	}
	return guids{uint64(devices[0].NodeGUID), uint64(table.Entries[0].GID.Interface())}, true, nil
}

// checkRebind returns an error if the driver of the lent function cannot be bound anew so that all is found again.
func checkRebind(tx *attachment.Tx, lent *ledger.Loan) error {
	if lent.Snapshot != nil && !lent.Identity.AnyMAC {
		return failure.New(failure.NotAvailable, "%s has an interface for each of several ports: their GUIDs cannot be set one by one", lent.PCI).
			Cure("remove the GUID from the pod and the network")
	}
	first, err := link.OpenNetns(link.InitNetns)
	if err != nil {
		return err
	}
	defer first.Close()
	if !first.ID.Equal(tx.Node.Netns.ID) {
		return failure.New(failure.NotAvailable, "the node's network namespace is not the machine's first one, in which a driver makes the InfiniBand interface").
			Cure("remove the GUID from the pod and the network")
	}
	return checkNumbers(tx.Node.Host(), lent.PCI)
}

// checkNumbers returns an error if the function's char devices would get other numbers.
func checkNumbers(host *nic.Host, pci string) error {
	chars := host.CharDevices("pci", pci)
	free := host.FreeBelow(chars)
	if free == "" {
		return nil
	}
	return failure.New(failure.NotAvailable, "the char devices of %s (%s), which its pod was promised, would get other numbers: %s is free", pci, strings.Join(chars, ", "), free).
		Cure("bind the drivers of all virtual functions anew while no pod has one, so that no number is free between them; or have the GUIDs set when the functions are made")
}

// rebindWait bounds the wait for what a driver makes after it was bound. mlx5 takes one or two seconds.
const rebindWait = 30 * time.Second

// rebind binds the driver to the function anew, which then has the GUIDs of its physical function's table. It
// returns when the RDMA device, its char devices and, if netdev is set, its interface are on the host. The RDMA device has the name and
// the settings that it had there. A device plugin may have promised a pod the char devices by their numbers: with promised set
// rebind returns an error if they would change.
func rebind(ctx context.Context, n *attachment.Node, host *nic.Host, pci, driver string, netdev, promised bool) error {
	lock, err := n.Ledger.LockRDMA(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rebindWait)
	defer cancel()
	core, err := rdma.Open(host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	before, err := core.ByParent(pci)
	if err != nil {
		return err
	}
	var settings map[string]string
	if len(before) == 1 {
		settings = core.Settings(before[0])
	}
	chars := host.CharDevices("pci", pci)
	if host.Bound(pci) {
		if err := checkNumbers(host, pci); err != nil && promised {
			return err
		}
		if err := host.Unbind(pci, driver); err != nil {
			return err
		}
	}
	if err := host.Bind(pci, driver); err != nil {
		return err
	}
	device, err := awaitDevice(ctx, core, host, pci, len(chars), netdev)
	if err != nil {
		return err
	}
	if now := host.CharDevices("pci", pci); promised && len(chars) > 0 && !slices.Equal(now, chars) {
		return failure.New(failure.TryAgain, "the char devices of %s were %s, and are %s since its driver was bound anew: another device was made at the same time",
			pci, strings.Join(chars, ", "), strings.Join(now, ", "))
	}
	if len(before) != 1 {
		return nil
	}
	if device.Name != before[0].Name {
		if err := core.Rename(device, before[0].Name); err != nil {
			return err
		}
		device.Name = before[0].Name
	}
	for _, c := range core.Restore(ctx, device, settings) {
		n.Log.Warn("setting of the RDMA device not kept", "device", device.Name, "setting", c.Setting, "err", c.Err)
	}
	return nil
}

// awaitDevice waits for the RDMA device of a function, for its char devices, and for its interface if netdev is set.
func awaitDevice(ctx context.Context, core *rdma.Core, host *nic.Host, pci string, chars int, netdev bool) (rdma.Device, error) {
	var device rdma.Device
	missing := ""
	err := wait.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		devices, err := core.ByParent(pci)
		if err != nil {
			return false, err
		}
		links, err := host.Netns.Links()
		switch {
		case err != nil:
			return false, err
		case len(devices) != 1:
			missing = "RDMA device"
		case len(host.CharDevices("pci", pci)) < chars:
			missing = "char devices"
		case netdev && !slices.ContainsFunc(links, func(l *link.Link) bool { return l.IsIPoIB() && l.ParentDev == pci }):
			missing = "InfiniBand interface"
		default:
			device, missing = devices[0], ""
		}
		return missing == "", nil
	})
	if wait.Ended(ctx, err) {
		err = failure.New(failure.TryAgain, "%s has no %s %s after its driver was bound anew", pci, missing, rebindWait).Cure("see the kernel log for the driver's reason")
	}
	return device, err
}

// Names are the names on the host of a virtual function, of its interface, and of its RDMA device; "" for any.
type Names struct{ PCI, Interface, RDMA string }

// Rebind binds the driver of a virtual function anew, and names what that makes. It does nothing if a userspace driver
// has the function.
func Rebind(ctx context.Context, n *attachment.Node, names Names) error {
	host := n.Host()
	driver := host.DriverOf(names.PCI)
	if driver == "" || !host.HasRDMADevice(names.PCI) {
		return nil
	}
	if err := rebind(ctx, n, host, names.PCI, driver, names.Interface != "", false); err != nil {
		return err
	}
	links, err := host.Netns.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == names.PCI && names.Interface != "" && l.Name != names.Interface {
			if err := host.Netns.Rename(l.Index, names.Interface); err != nil {
				return err
			}
		}
	}
	core, err := rdma.Open(host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	devices, err := core.ByParent(names.PCI)
	if err != nil || len(devices) != 1 || names.RDMA == "" || devices[0].Name == names.RDMA {
		return err
	}
	return core.Rename(devices[0], names.RDMA)
}

// noteGUID notes in the record which GUID the RDMA device has now.
func noteGUID(r *ledger.Record, node uint64) {
	if r.RDMA == nil {
		return
	}
	for i := range r.RDMA.Devices {
		if d := &r.RDMA.Devices[i]; d.ParentDev == r.Loan.PCI {
			d.NodeGUID = rdma.GUID(node)
		}
	}
}

// restoreGUIDs binds the driver anew, unless the function has the recorded GUIDs, and no others were bound in between.
func restoreGUIDs(ctx context.Context, releasing *attachment.Releasing, host *nic.Host) error {
	r := releasing.Record
	var want guids
	var given bool
	want.node, want.port, given = link.FunctionGUIDs(r.VF.Before)
	have, there, err := guidsOf(host, r.Loan.PCI)
	if err != nil {
		return err
	}
	if !there || given && have != want {
		netdev := r.LendsNetdev() && host.MakesIPoIB()
		if err := rebind(ctx, releasing.Node, host, r.Loan.PCI, r.VF.Driver, netdev, false); err != nil {
			return fmt.Errorf("bind its driver anew: %w", err)
		}
		if have, _, err = guidsOf(host, r.Loan.PCI); err != nil {
			return err
		}
	}
	noteGUID(r, have.node)
	if s := r.Loan.Snapshot; s != nil && given && !link.IsGUID(want.port) {
		s.MAC = "" // with the GUID 0
	}
	return nil
}
