package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// This file is for NICs that upstream's host-device lent, and that fell home
// because their pod died: no record, and no pod netns to look into. What is left
// is the alias that upstream gave them.

// fallWait bounds the wait for such a NIC. It is short: the selected NIC may as
// well be in another pod of upstream's, and never come.
const fallWait = 2 * time.Second

// takeBackFallen gives the NIC that the configuration selects its own name
// again, if it lies on the host under the name that the kernel left it. It
// stays down, because nobody knows how it was.
func (p LendNIC) takeBackFallen(ctx context.Context, n *Node, c *Call) error {
	s, err := p.Selector(&n.Host)
	if err != nil {
		return nil // nothing tells this NIC from others
	}
	for deadline := time.Now().Add(fallWait); ; time.Sleep(10 * time.Millisecond) {
		// What has a record comes home by its record.
		if holder, err := n.holderOfSelected(s); holder != nil || err != nil {
			return err
		}
		l, away, err := n.fallen(s, c)
		switch {
		case l != nil && away != nil:
			defer away.Close()
			return n.moveHome(ctx, n.unrecorded(c, l), away, n.Host.Netns, l, func() {})
		case l != nil:
			return n.restore(ctx, n.unrecorded(c, l), n.Host.Netns, l)
		}
		if err != nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		if _, err := n.Host.Select(s); !errors.Is(err, nic.ErrNotFound) {
			return nil // at home, or not to be found out
		}
	}
}

// fallen looks for the NIC that s selects, under a name that it has from the
// pod: in the host netns, and in init_net, where the kernel puts it. If it is
// there, and the host netns is another, away is open.
func (n *Node) fallen(s nic.Selector, c *Call) (l *link.Link, away *link.Netns, err error) {
	if l, err = n.fallenIn(n.Host.Netns, s, c); l != nil || err != nil {
		return l, nil, err
	}
	if away, err = link.OpenNetns(initNetns); err != nil {
		return nil, nil, nil // a container that may not look there
	}
	if !away.ID.Equal(n.Host.Netns.ID) {
		if l, err = n.fallenIn(away, s, c); l != nil {
			return l, away, nil
		}
	}
	away.Close()
	return nil, nil, err
}

func (n *Node) fallenIn(ns *link.Netns, s nic.Selector, c *Call) (*link.Link, error) {
	links, err := ns.Links()
	for _, l := range links {
		if r := n.unrecorded(c, l); hasFallen(l, c.IfName) && selects(s, r.Loan) && n.mayTake(r, l) {
			return l, nil
		}
	}
	return nil, err
}

// hasFallen says whether l has its host's name as the alias, and as its name
// what the kernel gives a NIC whose netns died: that of the pod, or dev<index>
// where the host has one of that name.
func hasFallen(l *link.Link, ifName string) bool {
	return lentByAlias(l) && l.Alias != l.Name &&
		(l.Name == ifName || l.Name == fmt.Sprintf("dev%d", l.Index))
}

// unrecorded makes the record that the loan of l would have, as far as l tells.
func (n *Node) unrecorded(c *Call, l *link.Link) *ledger.Record {
	r := &ledger.Record{Key: c.Key, HostNetns: n.hostNetns(), Netns: ledger.Netns{Path: c.Netns}}
	r.Loan = &ledger.Loan{Name: l.Alias, Identity: l.Identity(), Snapshot: &link.Snapshot{
		Name: l.Alias, AltNames: l.AltNames, MTU: l.MTU, MAC: l.MAC.String(), TxQueueLen: l.TxQueueLen,
		Group: l.Group, Flags: l.SettableFlags(),
	}}
	r.Loan.PCI = n.Host.Of(l).PCI
	return r
}
