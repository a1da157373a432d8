package attachment

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// Host returns the sources of facts about the node's NICs.
func (n *Node) Host() *nic.Host {
	return &nic.Host{
		Netns: n.Netns, Sys: n.Sys, Proc: n.Proc, Udev: n.Udev(),
		Holder: func(device string) string { return n.holderOfDevice(device) },
		NodeIP: n.Ledger.NodeIP,
	}
}

// holderOfDevice returns the name of the attachment that has been lent a device
// of the host, "" if none has.
func (n *Node) holderOfDevice(device string) string {
	records, _ := n.Ledger.List() // only for the text of an error
	for _, r := range records {
		if r.Loan != nil && r.Phase != ledger.Freeing && n.Ledger.OfThisBoot(r) && (r.Loan.PCI == device || r.Loan.Identity.ParentDev == device) {
			return r.Holder()
		}
	}
	return ""
}

// HolderOf returns the record that lends, from this host netns since the machine booted, the NIC
// that s selects by its state on the host, or nil.
func (n *Node) HolderOf(s nic.Selector) (*ledger.Record, error) {
	records, errs := n.Ledger.List()
	for _, r := range records {
		if r.Loan != nil && r.Phase != ledger.Freeing && r.HostNetns.Equal(n.Netns.ID) && n.Ledger.OfThisBoot(r) && Selects(s, r.Loan) {
			return r, nil
		}
	}
	return nil, errors.Join(errs...)
}

// sameMAC reports whether two texts are one link-layer address, in any spelling.
func sameMAC(a, b string) bool {
	one, errA := net.ParseMAC(a)
	other, errB := net.ParseMAC(b)
	return errA == nil && errB == nil && bytes.Equal(one, other)
}

// Selects reports whether s selects the NIC of the loan, as it was on the host.
func Selects(s nic.Selector, l *ledger.Loan) bool {
	switch {
	case s.Device != "":
		return l.Name == s.Device || l.Snapshot != nil && slices.Contains(l.Snapshot.AltNames, s.Device)
	case s.HWAddr != "":
		return l.Snapshot != nil && sameMAC(l.Snapshot.MAC, s.HWAddr)
	case s.KernelPath != "":
		return l.Identity.ParentDev != "" && strings.HasSuffix(strings.TrimRight(s.KernelPath, "/"), "/"+l.Identity.ParentDev)
	case s.PCI != "":
		return l.PCI == s.PCI
	default:
		return l.Identity.ParentDev == s.Aux
	}
}
