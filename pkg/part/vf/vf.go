package vf

import (
	"context"
	"errors"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// Part sets the settings of the lent virtual function. Its zero value releases those of a record.
type Part struct {
	attachment.Base
	Conf *netconf.SRIOV
}

// Name implements [attachment.Part].
func (Part) Name() string { return "vf" }

// Claim reads the virtual function that was claimed before, and records those settings that the network
// wants otherwise.
func (p Part) Claim(_ context.Context, tx *attachment.Tx) error {
	host, lent := tx.Node.Host(), tx.Record.Loan
	physical := host.PhysicalFunction(lent.PCI)
	number, ok := host.FunctionNumber(physical, lent.PCI)
	if !ok {
		return failure.New(failure.InvalidConfig, "%s is no virtual function", tx.Record.NICName()).
			Cure(`give the PCI address of one by "deviceID", or lend the NIC with host-device`)
	}
	w := wanted(p.Conf)
	if w.IsZero() {
		return nil
	}
	of, err := physicalLink(host, physical, number)
	if err != nil {
		return err
	}
	now, err := host.Netns.Function(of.Index, number)
	if err != nil {
		return err
	}
	if err := checkMAC(lent, link.FunctionMAC(now), w); err != nil {
		return err
	}
	if before, want := link.FunctionChanges(now, w); len(want) > 0 {
		tx.Record.VF = &ledger.VF{PF: physical, Number: number, Before: before, Want: want}
	}
	return nil
}

// checkMAC refuses another MAC for a function whose interface has not the MAC that the physical function has given: it
// could not get its own again, because a driver refuses all but the given one.
func checkMAC(lent *ledger.Loan, given net.HardwareAddr, w *link.FunctionSettings) error {
	if w.MAC == nil || given == nil || lent.Snapshot == nil || lent.Snapshot.MAC == given.String() {
		return nil
	}
	return failure.New(failure.NotAvailable, "%s has the MAC %s, and its physical function has given it %s: its own MAC could not be restored", lent.Name, lent.Snapshot.MAC, given).
		Cure("unbind its driver and bind it again, which gives the interface that MAC")
}

// wanted returns the settings that the network wants. The configuration is valid.
func wanted(c *netconf.SRIOV) *link.FunctionSettings {
	mac, _ := c.HardwareAddr()
	w := &link.FunctionSettings{MAC: mac, SpoofCheck: isOn(c.SpoofChk), Trust: isOn(c.Trust), MinRate: unsigned(c.MinTxRate), MaxRate: unsigned(c.MaxTxRate)}
	if c.VLAN != nil {
		w.VLAN = &link.FunctionVLAN{ID: uint32(*c.VLAN), Proto: unix.ETH_P_8021Q}
		if c.VLANQoS != nil {
			w.VLAN.QoS = uint32(*c.VLANQoS)
		}
		if c.VLANProto != nil && strings.EqualFold(*c.VLANProto, "802.1ad") {
			w.VLAN.Proto = unix.ETH_P_8021AD
		}
	}
	if state, ok := map[string]uint32{"auto": 0, "enable": 1, "disable": 2}[c.LinkState]; ok {
		w.LinkState = &state
	}
	return w
}

// isOn returns whether the word is "on", nil for "".
func isOn(word string) *bool {
	if word == "" {
		return nil
	}
	on := word == "on"
	return &on
}

func unsigned(v *int) *uint32 {
	if v == nil {
		return nil
	}
	u := uint32(*v)
	return &u
}

// physicalLink returns the interface of a physical function that has the virtual function with this number. Beside it
// the representors of a switchdev NIC have the same parent device.
func physicalLink(host *nic.Host, physical string, number int) (*link.Link, error) {
	links, err := host.Netns.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.ParentDev == physical && !host.IsRepresentor(l) {
			return l, nil
		}
	}
	return nil, failure.From(link.ErrNotFound, failure.NotAvailable, "the physical function %s has no interface on the host, by which its virtual function %d is set", physical, number).
		Cure("load its driver, and keep its interface in the host's network namespace")
}

// Apply sets what is recorded, and reads it back.
func (Part) Apply(_ context.Context, tx *attachment.Tx) error {
	v := tx.Record.VF
	if v == nil {
		return nil
	}
	host := tx.Node.Host()
	of, err := physicalLink(host, v.PF, v.Number)
	if err != nil {
		return err
	}
	err = host.Netns.SetFunction(of.Index, v.Want)
	if err == nil {
		err = host.Netns.CompareFunction(of.Index, v.Number, v.Want)
	}
	if err != nil {
		return failure.From(err, failure.NotAvailable, "virtual function %d of %s (%s)", v.Number, of.Name, v.PF).
			Cure("remove the key from the network; not every driver has each setting")
	}
	return nil
}

// Check compares the virtual function with what was set.
func (Part) Check(_ context.Context, c *attachment.Checking) error {
	if c.Record == nil || c.Record.VF == nil {
		return nil
	}
	v := c.Record.VF
	of, err := physicalLink(c.Node.Host(), v.PF, v.Number)
	if err != nil {
		return err
	}
	if err := c.Node.Netns.CompareFunction(of.Index, v.Number, v.Want); err != nil {
		return attachment.Mismatch("virtual function %d of %s: %v", v.Number, of.Name, err)
	}
	return nil
}

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.VF != nil }

// Release sets back the settings of a virtual function whose interface the pod no longer has, or that had
// none: see [Restore].
func (Part) Release(_ context.Context, releasing *attachment.Releasing) error {
	if releasing.Failed {
		return nil // the interface may be in the pod, which must not get another VLAN
	}
	return Restore(releasing)
}

// Restore sets back the settings of the record's virtual function, if it has some: once the interface has left the
// pod, and before the interface gets its own MAC again, which a driver refuses while the physical function
// has set another one. It does so once for each release.
func Restore(releasing *attachment.Releasing) error {
	r := releasing.Record
	v := r.VF
	if v == nil {
		return nil
	}
	host := *releasing.Node.Host()
	host.Netns = releasing.Home
	if number, ok := host.FunctionNumber(v.PF, r.Loan.PCI); !ok || number != v.Number {
		releasing.Node.LogOf(r).Warn("virtual function no longer exists, its settings are not restored", "pf", v.PF, "number", v.Number)
		r.VF = nil
		return nil
	}
	of, err := physicalLink(&host, v.PF, v.Number)
	if err == nil {
		err = host.Netns.SetFunction(of.Index, v.Before)
	}
	if errors.Is(err, link.ErrNotFound) {
		return failure.From(err, failure.NotReturned, "settings of virtual function %d of %s", v.Number, v.PF).
			Cure("bring the interface of the physical function back to the host; a sweep or `railctl gc` tries again")
	}
	if err != nil {
		return failure.From(err, failure.NotReturned, "settings of virtual function %d of %s", v.Number, of.Name).Cure("a DEL, a sweep or `railctl gc` tries again")
	}
	r.VF = nil
	return nil
}
