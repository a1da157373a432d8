package vf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// First is the part that restores the GUIDs of a virtual function. It is released before the
// interface and the RDMA device, because binding the driver again brings both back to the host,
// whatever the pod did with them.
type First struct{ Part }

// Recorded implements [attachment.Part].
func (First) Recorded(r *ledger.Record) bool { return r.Rebinds() }

// Release implements [attachment.Part].
func (First) Release(ctx context.Context, releasing *attachment.Releasing) error {
	releasing.Leaving(ctx) // the interface ends with its driver
	if err := Restore(ctx, releasing); err != nil {
		return err
	}
	links, err := link.Links(releasing.Home)
	if err == nil && slices.ContainsFunc(links, func(l *link.Link) bool { return l.ParentDev == releasing.Record.Loan.PCI }) {
		releasing.Silent() // the interface is on the host, so it is in no pod
	}
	return nil
}

// guids has the node GUID and the port GUID of an InfiniBand virtual function.
type guids struct{ node, port uint64 }

// same reports whether g and other are equal. A GUID of 0 and a GUID of all ones both mean that
// there is no GUID, so they are equal.
func (g guids) same(other guids) bool {
	equal := func(a, b uint64) bool { return a == b || !sriov.IsGUID(a) && !sriov.IsGUID(b) }
	return equal(g.node, other.node) && equal(g.port, other.port)
}

// guidsOf returns the GUIDs that the function has on the host. The function got them from its
// physical function when its driver was bound. ok is false if the function's RDMA device is not on
// the host.
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
	g.node = uint64(devices[0].NodeGUID)
	table, err := core.GIDs(devices[0], 1)
	if err == nil && len(table.Entries) > 0 {
		g.port = uint64(table.Entries[0].GID.Interface())
	}
	return g, err == nil, err
}

// planRebind notes in v which driver must be rebound so that the lent function gets the network's
// GUID. It also notes the name and the settings of the RDMA device, for the device that the driver
// will make. No driver is noted if the function already has the GUID, or if a userspace driver
// holds the function: the program that uses the function then resets the function when it begins.
func (p Part) planRebind(ctx context.Context, tx *attachment.Tx, v *ledger.VF) error {
	host, lent := tx.Node.Host(), tx.Record.Loan
	driver := host.DriverOf(lent.PCI)
	if p.want.GUID == nil || nic.IsUserspaceDriver(driver) {
		return nil
	}
	have, found, err := guidsOf(host, lent.PCI)
	switch {
	case err != nil:
		return err
	case !found:
		return failure.New(failure.TryAgain, "the RDMA device of %s is not in the host's network namespace, so its GUID cannot be set", lent.PCI).
			Cure("load its RDMA driver; `rdma dev` shows the devices")
	}
	v.Before = sriov.WithGUIDs(v.Before, have.node, have.port)
	switch {
	case have == guids{*p.want.GUID, *p.want.GUID}:
		return nil
	case lent.Driver != "" && !lent.RDMAAlone:
		return failure.New(failure.InvalidConfig, `"DPDKMode" leaves the driver %s alone, but %s gets a GUID only when that driver is rebound`, driver, lent.PCI).
			Cure(`bind vfio-pci, or remove "DPDKMode" or the GUID`)
	}
	if err := checkRebind(ctx, tx, lent, driver); err != nil {
		return err
	}
	v.Driver = driver
	core, err := rdma.Open(host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	devices, err := core.ByParent(lent.PCI)
	if err == nil && len(devices) == 1 {
		v.RDMA, v.RDMASettings = devices[0].Name, core.Settings(devices[0])
	}
	return err
}

// firstPIDs is the target of the link /proc/self/ns/pid in the initial PID namespace
// (PROC_PID_INIT_INO).
const firstPIDs = "pid:[4026531836]"

// checkRebind returns an error if binding the driver of the lent function again would fail, would
// lose an interface, or would change the number of a char device.
func checkRebind(ctx context.Context, tx *attachment.Tx, lent *ledger.Loan, driver string) error {
	host := tx.Node.Host()
	if lent.Snapshot != nil && !lent.Identity.AnyMAC {
		return failure.New(failure.NotAvailable, "%s has an interface for each of several ports: the GUIDs of the ports cannot be set one by one", lent.PCI).
			Cure("remove the GUID from the pod and the network")
	}
	if other := host.DriverOverride(lent.PCI); other != "" && other != driver {
		return failure.New(failure.NotAvailable, "the driver %s of %s could not be rebound: its driver_override is %s", driver, lent.PCI, other).
			Cure("clear driver_override in its sysfs directory")
	}
	first, err := netns.Open(netns.InitPath)
	if err != nil {
		return err
	}
	defer first.Close()
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	if !first.ID.Equal(tx.Node.Netns.ID) || pids != firstPIDs { // in another PID namespace, first is the netns of another process
		return failure.New(failure.NotAvailable, "the node's network namespace is not the machine's initial one, in which a driver makes the InfiniBand interface").
			Cure("remove the GUID from the pod and the network")
	}
	lock, err := lockRDMA(ctx, tx.Node) // while another device is moved or re-created, its numbers are free
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	return checkNumbers(host, lent.PCI)
}

// checkNumbers returns an error if the function's char devices would get other numbers.
func checkNumbers(host *nic.Host, pci string) error {
	chars := host.CharDevices("pci", pci)
	free := host.FreeBelow(chars)
	if free == "" {
		return nil
	}
	return failure.New(failure.NotAvailable, "the char devices of %s (%s), which its pod was promised, would get other numbers: %s is free", pci, strings.Join(chars, ", "), free).
		Cure("either rebind the drivers of all virtual functions while no pod has a virtual function, so that no number between theirs is free; or set the GUIDs when the functions are made")
}

// lockWait bounds the wait for the node's lock of RDMA devices. rebindWait bounds the wait for the
// devices that a driver makes after it was bound (mlx5 takes one or two seconds). sweepWait bounds
// the same wait in a sweep. furnishWait bounds the wait until RDMA-CM serves the new device.
const (
	lockWait    = time.Minute
	rebindWait  = 30 * time.Second
	sweepWait   = 3 * time.Second
	furnishWait = 5 * time.Second
)

func lockRDMA(ctx context.Context, n *attachment.Node) (*statefile.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return n.Ledger.LockRDMA(ctx)
}

// rebinding rebinds the driver of a virtual function, so that the function takes its GUIDs from the
// table of its physical function.
type rebinding struct {
	*attachment.Node
	host        *nic.Host
	pci, driver string            // if driver is "", the kernel chooses the driver
	name        string            // of the RDMA device; "" for any name
	settings    map[string]string // of the RDMA device
	netdev      bool              // the driver must make an InfiniBand interface
	// promised is set if a device plugin has promised a pod the char devices by their numbers. Then
	// the numbers must not change.
	promised bool
	wait     time.Duration // for the devices that the driver makes
}

// run rebinds the driver, and waits until the RDMA device, its char devices and its interface are
// on the host.
func (r rebinding) run(ctx context.Context) error {
	lock, err := lockRDMA(ctx, r.Node)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	core, err := rdma.Open(r.host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	chars := r.host.CharDevices("pci", r.pci)
	if err := r.bind(); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.wait)
	defer cancel()
	device, err := r.await(waiting, core, len(chars))
	if err != nil {
		return err
	}
	if now := r.host.CharDevices("pci", r.pci); r.promised && len(chars) > 0 && !slices.Equal(now, chars) {
		return failure.New(failure.TryAgain, "the char devices of %s were %s, but are %s since its driver was rebound: another device was made at the same time",
			r.pci, strings.Join(chars, ", "), strings.Join(now, ", ")).
			Cure("delete the pod, so that the device plugin allocates it a function again")
	}
	furnishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), furnishWait)
	defer cancel()
	r.furnish(furnishing, core, device)
	return nil
}

// bind unbinds the function's driver, if it has one, and binds r.driver.
func (r rebinding) bind() error {
	if bound := r.host.DriverOf(r.pci); bound != "" {
		if r.promised {
			if err := checkNumbers(r.host, r.pci); err != nil {
				return err
			}
		}
		if err := r.host.Unbind(r.pci, bound); err != nil {
			return err
		}
	}
	if r.driver == "" {
		return r.host.Probe(r.pci)
	}
	return r.host.Bind(r.pci, r.driver)
}

// furnish sets the name of the RDMA device and restores its settings.
func (r rebinding) furnish(ctx context.Context, core *rdma.Core, device rdma.Device) {
	if r.name != "" && r.name != device.Name {
		if err := core.Rename(device, r.name); err != nil { // the part of the RDMA devices renames devices that move, and frees their names first
			r.Log.Warn("cannot give the RDMA device its earlier name after its driver was rebound", "device", r.name, "name", device.Name, "err", err)
		} else {
			device.Name = r.name
		}
	}
	for _, c := range core.Restore(ctx, device, r.settings) {
		r.Log.Warn("cannot keep a setting of the RDMA device", "device", device.Name, "setting", c.Setting, "err", c.Err)
	}
}

// await waits for the RDMA device, for as many char devices as chars, and for the interface.
func (r rebinding) await(ctx context.Context, core *rdma.Core, chars int) (rdma.Device, error) {
	var device rdma.Device
	missing := ""
	err := wait.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		devices, err := core.ByParent(r.pci)
		if err != nil {
			return false, err
		}
		links, err := link.Links(r.host.Netns)
		switch {
		case err != nil:
			return false, err
		case len(devices) != 1:
			missing = "RDMA device"
		case len(r.host.CharDevices("pci", r.pci)) < chars:
			missing = "char devices"
		case r.netdev && !slices.ContainsFunc(links, func(l *link.Link) bool { return l.IsIPoIB() && l.ParentDev == r.pci }):
			missing = "InfiniBand interface"
		default:
			device, missing = devices[0], ""
		}
		return missing == "", nil
	})
	if wait.Ended(ctx, err) {
		err = failure.New(failure.TryAgain, "%s has no %s %s after its driver was rebound", r.pci, missing, r.wait).Cure("see the kernel log for the driver's reason")
	}
	return device, err
}

// Names has the names of a virtual function, of its interface and of its RDMA device on the host.
// An Interface or RDMA of "" means any name.
type Names struct{ PCI, Interface, RDMA string }

// Rebind unbinds the driver of a virtual function and binds it again. Then it gives the interface
// and the RDMA device that the driver makes their names. If the function has no driver, Rebind only
// binds one. If a userspace driver has the function, Rebind does nothing.
func Rebind(ctx context.Context, n *attachment.Node, names Names) error {
	host := n.Host()
	driver := host.DriverOf(names.PCI)
	if nic.IsUserspaceDriver(driver) {
		return nil
	}
	netdev := names.Interface != "" && host.MakesIPoIB()
	r := rebinding{Node: n, host: host, pci: names.PCI, driver: driver, name: names.RDMA, netdev: netdev, wait: rebindWait}
	if err := r.run(ctx); err != nil || !netdev {
		return err
	}
	links, err := link.Links(host.Netns)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == names.PCI && l.Name != names.Interface {
			return link.Rename(host.Netns, l.Index, names.Interface)
		}
	}
	return nil
}

// noteDevice notes in the record which GUID the RDMA device has now, and which name the device will
// get on the host.
func noteDevice(r *ledger.Record, node uint64) {
	if r.RDMA == nil {
		return
	}
	for i := range r.RDMA.Devices {
		if d := &r.RDMA.Devices[i]; d.ParentDev == r.Loan.PCI {
			d.NodeGUID, d.Name = ibaddr.GUID(node), r.VF.RDMA
		}
	}
}

// restoreGUIDs rebinds the driver, unless the function has the recorded GUIDs.
func restoreGUIDs(ctx context.Context, releasing *attachment.Releasing, host *nic.Host) error {
	r, n := releasing.Record, releasing.Node
	if now := host.DriverOf(r.Loan.PCI); now != "" && now != r.VF.Driver {
		n.LogOf(r).Warn("virtual function has another driver now, so its earlier driver is not bound", "driver", now, "pci", r.Loan.PCI)
		return nil
	}
	want := guids{}
	given := false
	want.node, want.port, given = sriov.GUIDs(r.VF.Before)
	have, found, err := guidsOf(host, r.Loan.PCI)
	if err != nil {
		return err
	}
	if !found || given && !have.same(want) {
		b := rebinding{
			Node: n, host: host, pci: r.Loan.PCI, driver: r.VF.Driver, name: r.VF.RDMA, settings: r.VF.RDMASettings,
			netdev: r.LendsNetdev() && host.MakesIPoIB(), wait: rebindWait,
		}
		if !releasing.Conclusive() {
			b.wait = max(releasing.Wait, sweepWait) // the next sweep finds devices that come later
		}
		if err := b.run(ctx); err != nil {
			return fmt.Errorf("rebind its driver: %w", err)
		}
		if have, _, err = guidsOf(host, r.Loan.PCI); err != nil {
			return err
		}
	} else if err := furnishAgain(ctx, releasing, host); err != nil {
		return err
	}
	noteDevice(r, have.node)
	if s := r.Loan.Snapshot; s != nil && s.PortGUID() != have.port {
		s.MAC = "" // this MAC contains a GUID that the port does not have
	}
	return nil
}

// furnishAgain restores the name and the settings of the RDMA device once more, because an earlier
// process may have been killed after it bound the driver.
func furnishAgain(ctx context.Context, releasing *attachment.Releasing, host *nic.Host) error {
	r := releasing.Record
	core, err := rdma.Open(host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	devices, err := core.ByParent(r.Loan.PCI)
	if err != nil || len(devices) != 1 {
		return err
	}
	ctx, cancel := releasing.Served(ctx, furnishWait)
	defer cancel()
	rebinding{Node: releasing.Node, name: r.VF.RDMA, settings: r.VF.RDMASettings}.furnish(ctx, core, devices[0])
	return nil
}
