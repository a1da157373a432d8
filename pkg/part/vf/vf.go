package vf

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Part sets the settings of the lent virtual function. The zero value can release the settings that
// a record has.
type Part struct {
	attachment.Base
	want       *sriov.Settings
	infiniBand bool // the function must be InfiniBand
	userspace  bool // a userspace driver must hold it
	await      func() error
}

// Ethernet returns the part for a network of sriov. c must be valid.
func Ethernet(c *netconf.SRIOV) Part { return Part{want: wanted(c)} }

// InfiniBand returns the part for a network of ib-sriov. c must be valid.
func InfiniBand(c *netconf.IBSRIOV) Part {
	w := &sriov.Settings{LinkState: linkState(c.LinkState)}
	if c.GUID != 0 {
		w.GUID = &c.GUID
	}
	return Part{want: w, infiniBand: true, userspace: c.VFIOPCIMode, await: c.Await}
}

// Name implements [attachment.Part].
func (Part) Name() string { return "vf" }

// Claim reads the settings of the virtual function that another part has claimed, and records the
// settings that the network wants to be different.
func (p Part) Claim(ctx context.Context, tx *attachment.Tx) error {
	if p.await != nil {
		if err := p.await(); err != nil {
			return err
		}
	}
	host, lent := tx.Node.Host(), tx.Record.Loan
	physical := host.PhysicalFunction(lent.PCI)
	number, ok := host.FunctionNumber(physical, lent.PCI)
	if !ok {
		return failure.New(failure.InvalidConfig, "%s is not a virtual function", tx.Record.NICName()).
			Cure(`set "deviceID" to the PCI address of a virtual function, or lend the NIC with host-device`)
	}
	var err error
	if lent.Identity.AnyMAC, err = isAlone(host, lent); err != nil {
		return err
	}
	if err := p.checkDriver(host, lent); err != nil {
		return err
	}
	pf, err := physicalLink(host, physical)
	if err == nil && lent.Snapshot == nil && !p.infiniBand { // the result has this MTU, as with sriov-cni
		tx.Record.MTU = pf.MTU
	}
	if p.want.IsZero() {
		return nil
	}
	if err != nil {
		return err
	}
	if p.infiniBand && pf.Encap != "infiniband" {
		return failure.New(failure.InvalidConfig, "%s is not an InfiniBand function: its physical function %s is %s", lent.PCI, pf.Name, pf.Encap).
			Cure(`use "type": "sriov"`)
	}
	var now []byte
	if err := answered(ctx, func() error { now, err = sriov.Function(host.Netns, pf.Index, number); return err }); err != nil {
		return failure.From(err, failure.TryAgain, "virtual function %d of %s", number, pf.Name).Cure("try again, because the driver may be resetting the function")
	}
	given := sriov.MAC(now)
	if err := checkMAC(lent, given, p.want); err != nil {
		return err
	}
	if lent.Snapshot == nil && !p.infiniBand { // the result has the MAC that the pod's own driver will find
		tx.Record.MAC = cmp.Or(p.want.MAC.String(), given.String())
	}
	before, want := sriov.Changes(now, p.want)
	if len(want) > 0 && isTrusted(p.want) && p.want.MAC == nil { // igb treats a MAC that the pod sets as the given MAC, and refuses other MACs later
		was, _ := sriov.Changes(now, &sriov.Settings{MAC: make(net.HardwareAddr, 6)})
		before = append(was, before...)
	}
	v := &ledger.VF{PF: physical, Number: number, Before: before, Want: want}
	if err := p.planRebind(ctx, tx, v); err != nil {
		return err
	}
	if len(want) > 0 || v.Driver != "" {
		tx.Record.VF = v
	}
	return nil
}

// checkDriver returns an error if the network wants a userspace driver but no such driver holds the
// lent function.
func (p Part) checkDriver(host *nic.Host, lent *ledger.Loan) error {
	driver := host.DriverOf(lent.PCI)
	if !p.userspace || nic.IsUserspaceDriver(driver) {
		return nil
	}
	return failure.New(failure.NotAvailable, `"vfioPciMode" is set, but no userspace driver holds %s (its driver is %q)`, lent.PCI, driver).
		Cure(`bind vfio-pci, or remove "vfioPciMode"`)
}

// isAlone reports whether the lent interface is the only interface of its function. Functions of
// mlx4 have an interface for each port.
func isAlone(host *nic.Host, lent *ledger.Loan) (bool, error) {
	if lent.Snapshot == nil {
		return false, nil
	}
	links, err := link.Links(host.Netns)
	others := slices.ContainsFunc(links, func(l *link.Link) bool {
		return l.ParentDev == lent.Identity.ParentDev && l.Index != lent.Identity.Index
	})
	return !others, err
}

func isTrusted(w *sriov.Settings) bool { return w.Trust != nil && *w.Trust }

// answerWait bounds the wait for a driver that resets a virtual function. During a reset the kernel
// leaves the function out of its answer (rtnl_fill_vfinfo).
const answerWait = time.Second

// answered calls do until do returns nil or an error other than [link.ErrNotFound].
func answered(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	var err error
	_ = wait.Until(ctx, 20*time.Millisecond, func() (bool, error) { // err is the reason
		err = do()
		return !errors.Is(err, link.ErrNotFound), nil
	})
	return err
}

// checkMAC returns an error if the MAC of the interface may change in the pod but could not be
// restored afterwards. The MAC may change if the network has a MAC, or if it makes the function
// trusted, so that the pod may set another MAC. It cannot be restored if it differs from the MAC
// that the physical function has given, because a driver accepts only the given MAC.
func checkMAC(lent *ledger.Loan, given net.HardwareAddr, w *sriov.Settings) error {
	if w.MAC == nil && !isTrusted(w) || given == nil || lent.Snapshot == nil || lent.Snapshot.MAC == given.String() {
		return nil
	}
	return failure.New(failure.NotAvailable, "the MAC %s of %s could not be restored: its physical function has given it %s", lent.Snapshot.MAC, lent.Name, given).
		Cure(`rebind its driver, which gives the interface that MAC; or remove "mac" and "trust"`)
}

// wanted returns the settings that the network wants. c must be valid.
func wanted(c *netconf.SRIOV) *sriov.Settings {
	mac, _ := c.HardwareAddr()
	w := &sriov.Settings{MAC: mac, SpoofCheck: isOn(c.SpoofChk), Trust: isOn(c.Trust), MinRate: unsigned(c.MinTxRate), MaxRate: unsigned(c.MaxTxRate)}
	if c.VLAN != nil {
		w.VLAN = &sriov.VLAN{ID: uint32(*c.VLAN), Proto: unix.ETH_P_8021Q}
		if c.VLANQoS != nil {
			w.VLAN.QoS = uint32(*c.VLANQoS)
		}
		if c.VLANProto != nil && strings.EqualFold(*c.VLANProto, "802.1ad") {
			w.VLAN.Proto = unix.ETH_P_8021AD
		}
	}
	w.LinkState = linkState(c.LinkState)
	return w
}

// linkState returns the kernel's value for a value of "link_state", or nil for "".
func linkState(word string) *uint32 {
	if state, ok := map[string]uint32{"auto": 0, "enable": 1, "disable": 2}[word]; ok {
		return &state
	}
	return nil
}

// isOn returns a pointer to whether word is "on", or nil for "".
func isOn(word string) *bool {
	if word == "" {
		return nil
	}
	enabled := word == "on"
	return &enabled
}

func unsigned(v *int) *uint32 {
	if v == nil {
		return nil
	}
	u := uint32(*v)
	return &u
}

// physicalLink returns the interface of a physical function on the host. It does not return a
// representor, although representors have the same parent device.
func physicalLink(host *nic.Host, physical string) (*link.Link, error) {
	links, err := link.Links(host.Netns)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.ParentDev == physical && !host.IsRepresentor(l) {
			return l, nil
		}
	}
	return nil, failure.From(link.ErrNotFound, failure.NotAvailable, "the physical function %s has no interface on the host: its virtual functions cannot be configured", physical).
		Cure("load its driver, and keep its interface in the host's network namespace")
}

// Set sets the settings in which the virtual function at the PCI address pci differs from w. The
// error wraps [link.ErrNotFound] if there is no such function, or if its physical function has no
// interface.
func Set(ctx context.Context, host *nic.Host, pci string, w *sriov.Settings) error {
	physical := host.PhysicalFunction(pci)
	number, ok := host.FunctionNumber(physical, pci)
	if !ok {
		return fmt.Errorf("virtual function %s: %w", pci, link.ErrNotFound)
	}
	pf, err := physicalLink(host, physical)
	if err != nil {
		return err
	}
	var now []byte
	if err := answered(ctx, func() error { now, err = sriov.Function(host.Netns, pf.Index, number); return err }); err != nil {
		return err
	}
	_, want := sriov.Changes(now, w)
	_, err = sriov.Set(host.Netns, pf.Index, want)
	return err
}

// Apply sets the recorded settings, and reads them back. The interface is down while Apply runs and
// stays down until after the move, because the host must not send into the VLAN of the network.
func (p Part) Apply(ctx context.Context, tx *attachment.Tx) error {
	v, lent := tx.Record.VF, tx.Record.Loan
	if v == nil {
		return nil
	}
	host := tx.Node.Host()
	pf, err := physicalLink(host, v.PF)
	if err != nil {
		return err
	}
	if tx.Record.Rebinds() {
		tx.Begin("rdma") // a rollback must give the RDMA device its name again
	}
	if lent.Snapshot != nil {
		tx.Begin("netdev") // a rollback must set the interface up again, with its routes
		if l, err := link.ByIndex(host.Netns, lent.Identity.Index); err == nil && lent.Identity.Is(l) && l.IsUp() {
			if err := link.SetDown(host.Netns, l.Index); err != nil {
				return err
			}
		}
	}
	_, err = sriov.Set(host.Netns, pf.Index, v.Want)
	var differ []string
	if err == nil {
		err = answered(ctx, func() error { differ, _, err = sriov.Compare(host.Netns, pf.Index, v.Number, v.Want); return err })
	}
	if err == nil && len(differ) > 0 {
		err = fmt.Errorf("%s: the driver reports another value than the one that was set", strings.Join(differ, ", "))
	}
	if err != nil {
		return failure.From(err, failure.NotAvailable, "virtual function %d of %s (%s)", v.Number, pf.Name, v.PF).
			Cure("remove the key from the network: not every driver supports each setting")
	}
	if !tx.Record.Rebinds() {
		return nil
	}
	r := rebinding{
		Node: tx.Node, host: host, pci: lent.PCI, driver: v.Driver, name: v.RDMA, settings: v.RDMASettings,
		netdev: lent.Snapshot != nil, promised: true, wait: rebindWait,
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	have, _, err := guidsOf(host, lent.PCI)
	if err != nil {
		return err
	}
	if want := (guids{*p.want.GUID, *p.want.GUID}); have != want {
		return failure.New(failure.NotAvailable, "virtual function %d of %s has the GUIDs %016x and %016x since its driver was rebound, not %016x", v.Number, pf.Name, have.node, have.port, want.node).
			Cure("see the kernel log; not every driver takes a GUID")
	}
	noteDevice(tx.Record, have.node)
	return tx.Node.Ledger.Put(tx.Record)
}

// Check compares the settings of the virtual function with what ADD set.
func (Part) Check(ctx context.Context, c *attachment.Checking) error {
	if c.Record == nil || c.Record.VF == nil {
		return nil
	}
	v := c.Record.VF
	pf, err := physicalLink(c.Node.Host(), v.PF)
	if err != nil {
		return err
	}
	var differ []string
	err = answered(ctx, func() error { differ, _, err = sriov.Compare(c.Node.Netns, pf.Index, v.Number, v.Want); return err })
	if err == nil && len(differ) > 0 {
		err = attachment.Mismatch("virtual function %d of %s is not as it was set: %s", v.Number, pf.Name, strings.Join(differ, ", "))
	}
	return err
}

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.VF != nil }

// Release restores the settings if no other part has restored them. The part that returns an
// interface calls [Restore] itself.
func (Part) Release(ctx context.Context, releasing *attachment.Releasing) error {
	if releasing.Failed {
		return nil // the interface or the RDMA device may be in the pod, and the pod must not get another VLAN
	}
	return Restore(ctx, releasing)
}

// Restore restores the settings that the attachment changed, if there are any. Call it after the
// interface has left the pod, and before the interface gets its own MAC again, because a driver
// refuses that MAC as long as the physical function gives another one. A second call in the same
// release does nothing.
//
// Restore returns a [failure.NotReturned] error if an earlier part has failed, or if a setting that
// isolates pods could not be restored. Other settings that could not be restored are only logged.
func Restore(ctx context.Context, releasing *attachment.Releasing) error {
	r, n := releasing.Record, releasing.Node
	v := r.VF
	if v == nil {
		return nil
	}
	if releasing.Failed {
		return failure.New(failure.NotReturned, "virtual function %d of %s keeps the pod's settings as long as the pod has its RDMA device", v.Number, v.PF).
			Cure("a DEL, a sweep or `railctl gc` tries again")
	}
	host := *n.Host()
	host.Netns = releasing.Home
	if number, ok := host.FunctionNumber(v.PF, r.Loan.PCI); !ok || number != v.Number {
		n.LogOf(r).Warn("virtual function no longer exists, so its settings are not restored", "pf", v.PF, "number", v.Number)
		r.VF = nil
		return nil
	}
	others, _ := n.Ledger.Held(ledger.Anywhere, func(o *ledger.Record) bool { // nothing is known about a record that cannot be read
		return o.Key != r.Key && o.Loan != nil && o.Loan.PCI == r.Loan.PCI
	})
	switch {
	case len(others) == 0:
	case slices.ContainsFunc(others, func(o *ledger.Record) bool { return o.Phase == ledger.Lent }):
		n.LogOf(r).Warn("another attachment has the virtual function, so its settings are not restored", "pf", v.PF, "number", v.Number)
		r.VF = nil
		return nil
	default: // an ADD has not confirmed yet, or is failing: it must not record these settings as the function's own
		return failure.New(failure.NotReturned, "virtual function %d of %s is being lent to another attachment", v.Number, v.PF).
			Cure("a DEL, a sweep or `railctl gc` tries again")
	}
	err := restore(ctx, releasing, &host)
	if err == nil && r.Rebinds() {
		err = restoreGUIDs(ctx, releasing, &host)
	}
	if err != nil {
		return failure.From(err, failure.NotReturned, "restore the settings of virtual function %d of %s", v.Number, v.PF).Cure("a DEL, a sweep or `railctl gc` tries again")
	}
	r.VF = nil
	return nil
}

// restore sets the recorded settings. If the driver refuses a setting, restore finds out which
// settings are not as they were.
func restore(ctx context.Context, releasing *attachment.Releasing, host *nic.Host) error {
	r := releasing.Record
	v := r.VF
	pf, err := physicalLink(host, v.PF)
	if err != nil {
		return err
	}
	var refused []string
	var why error
	waiting, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	_ = wait.Until(waiting, 50*time.Millisecond, func() (bool, error) { // a driver may be resetting the function; why is the error
		refused, why = sriov.Set(host.Netns, pf.Index, v.Before)
		return why == nil, nil
	})
	if why == nil {
		return nil
	}
	var differ, unreported []string
	var now []byte
	err = answered(ctx, func() error {
		if differ, unreported, err = sriov.Compare(host.Netns, pf.Index, v.Number, v.Before); err == nil {
			now, err = sriov.Function(host.Netns, pf.Index, v.Number)
		}
		return err
	})
	if err != nil {
		return errors.Join(why, err)
	}
	unset := sriov.UnsetGUIDs(now) // the driver has also refused the pod's GUIDs
	differ = slices.DeleteFunc(differ, func(setting string) bool { return slices.Contains(unset, setting) })
	for _, setting := range refused {
		if slices.Contains(unreported, setting) {
			differ = append(differ, setting)
		}
	}
	if slices.ContainsFunc(differ, sriov.Isolates) {
		return why
	}
	if len(differ) > 0 {
		releasing.Node.LogOf(r).Warn("cannot restore settings of the virtual function: its driver refuses them", "pf", v.PF, "number", v.Number, "settings", differ, "err", why)
	}
	return keepMAC(host, pf, v.Number, r.Loan.Snapshot)
}

// keepMAC sets the MAC that the interface had before, through the physical function, if another MAC
// is still set there. This is needed for drivers that do not accept the zero MAC (be2net,
// octeontx2): the MAC of the pod is still set then, and the driver would refuse the interface's own
// MAC.
func keepMAC(host *nic.Host, pf *link.Link, number int, was *nicstate.Snapshot) error {
	now, err := sriov.Function(host.Netns, pf.Index, number)
	if err != nil || was == nil || pf.Encap == "infiniband" { // a physical IPoIB interface reports its own address there (ipoib_get_vf_config)
		return err
	}
	mac, err := net.ParseMAC(was.MAC)
	if given := sriov.MAC(now); err != nil || given == nil || bytes.Equal(given, mac) {
		return err
	}
	_, want := sriov.Changes(now, &sriov.Settings{MAC: mac})
	_, err = sriov.Set(host.Netns, pf.Index, want)
	return err
}
