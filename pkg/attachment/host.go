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

// holderOfDevice returns the name of the attachment to which this device of the host is lent,
// or "" if the device is not lent.
func (n *Node) holderOfDevice(device string) string {
	holders, _ := n.Ledger.Held(ledger.Anywhere, func(r *ledger.Record) bool { // only for the text of an error
		return r.Loan != nil && (r.Loan.PCI == device || r.Loan.Identity.ParentDev == device)
	})
	if len(holders) == 0 {
		return ""
	}
	return holders[0].Holder()
}

// HolderOf returns the record of the attachment to which the NIC is lent that s selects, or nil
// if no attachment has the NIC. Only records of this boot and this host netns count. s is
// compared with the NIC as it was on the host.
func (n *Node) HolderOf(s nic.Selector) (*ledger.Record, error) {
	holders, errs := n.Ledger.Held(n.Netns.ID, func(r *ledger.Record) bool { return r.Loan != nil && Selects(s, r.Loan) })
	if len(holders) == 0 {
		return nil, errors.Join(errs...)
	}
	return holders[0], nil
}

// sameMAC reports whether a and b are the same link-layer address, in any spelling.
func sameMAC(a, b string) bool {
	one, errA := net.ParseMAC(a)
	other, errB := net.ParseMAC(b)
	return errA == nil && errB == nil && bytes.Equal(one, other)
}

// Selects reports whether s selects the NIC of the loan l. It compares s with the NIC as the NIC
// was on the host.
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
