package netdev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// TakeOver returns a NIC that upstream's host-device lent, or that our host-device lent and whose
// record is lost. The alias of the interface is the NIC's name on the host. On the host such a NIC
// is set down, because its earlier state is unknown.
//
// The pod chooses the names and aliases of its links. So the host takes back only a NIC that has a
// device, that the configuration selects and that the node file permits.
func (p *Part) TakeOver(ctx context.Context, u *attachment.Upstream) error {
	if u.Pod == nil {
		return p.takeOverReturned(ctx, u)
	}
	l, err := link.ByName(u.Pod, u.IfName)
	if errors.Is(err, link.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r := unrecorded(u, l)
	s, err := p.selector(u.Node, u.Node.Host())
	if err != nil || !lentByAlias(l) || !attachment.Selects(s, r.Loan) || !mayTake(u.Node, r, l) {
		return nil
	}
	r.Netns.ID = u.Pod.ID
	return returnNIC(ctx, &attachment.Releasing{Node: u.Node, Record: r, Pod: u.Pod, Home: u.Node.Netns}, u.Pod, l)
}

// lentByAlias reports whether l is a NIC that has a device, and whose alias can be the NIC's name
// on the host.
func lentByAlias(l *link.Link) bool {
	return l.HasParent() && utils.ValidateInterfaceName(l.Alias) == nil
}

// mayTake reports whether the host may take back l, a NIC that only its alias marks as lent. The
// node file must permit the NIC, and no attachment may have this NIC or another NIC with the same
// name on the host.
func mayTake(n *attachment.Node, r *ledger.Record, l *link.Link) bool {
	known, host := *l, n.Host()
	known.Name = l.Alias
	found := host.NICOf(&known)
	if err := host.Permit(found, n.File, nil); err != nil {
		n.Log.Warn("NIC without a record stays where it is", "nic", l.Alias, "err", err)
		return false
	}
	key := found.Key(n.Netns.ID)
	return !n.AnotherHas(r, func(o *ledger.Record) bool {
		held := o.Loan != nil && (o.Loan.NIC == key || o.HostNetns.Equal(n.Netns.ID) && o.Loan.Name == l.Alias)
		if held {
			n.LogOf(o).Warn("NIC without a record stays where it is: an attachment has the NIC or its name", "alias", l.Alias, "device", l.ParentDev)
		}
		return held
	})
}

// The rest of this file is for NICs that upstream's host-device lent, and that the kernel returned
// because their pod died. There is neither a record nor a pod netns. Only the alias that upstream
// set is left.

// returnedWait bounds the wait for such a NIC. It is short, because the selected NIC may be in
// another pod that upstream's plugin attached. In that case the NIC never comes.
const returnedWait = 2 * time.Second

// takeOverReturned restores the name of the NIC that the configuration selects, if the NIC is on
// the host under the name with which the kernel returned it. The NIC stays down, because its
// earlier state is unknown.
func (p *Part) takeOverReturned(ctx context.Context, u *attachment.Upstream) error {
	n, host := u.Node, u.Node.Host()
	s, err := p.selector(n, host)
	if err != nil {
		return nil // the NIC cannot be recognized
	}
	ctx, cancel := context.WithTimeout(ctx, returnedWait)
	defer cancel()
	err = wait.Until(ctx, 10*time.Millisecond, func() (done bool, err error) {
		// A NIC that has a record is returned by the record.
		if holder, err := n.HolderOf(s); holder != nil || err != nil {
			return true, err
		}
		l, ns, err := returned(s, u)
		releasing := &attachment.Releasing{Node: n, Home: n.Netns}
		switch {
		case l != nil && ns != nil:
			defer ns.Close()
			releasing.Record = unrecorded(u, l)
			return true, returnNIC(context.WithoutCancel(ctx), releasing, ns, l)
		case l != nil:
			releasing.Record = unrecorded(u, l)
			return true, restore(context.WithoutCancel(ctx), releasing, l)
		case err != nil:
			return true, err
		}
		_, err = host.Select(s)
		return !errors.Is(err, nic.ErrNotFound), nil // the NIC is on the host, or that is unknown
	})
	if wait.Ended(ctx, err) {
		return nil // the NIC did not come
	}
	return err
}

// returned looks for the NIC that s selects and that still has a name from the pod. It looks in the
// host netns and in init_net, where the kernel moves the NIC. If the NIC is in init_net and the
// host netns is another netns, ns is init_net, and the caller closes it.
func returned(s nic.Selector, u *attachment.Upstream) (l *link.Link, ns *netns.Netns, err error) {
	if l, err = returnedIn(u.Node.Netns, s, u); l != nil || err != nil {
		return l, nil, err
	}
	if ns, err = netns.Open(netns.InitPath); err != nil {
		return nil, nil, nil // a container may not be permitted to open init_net
	}
	if !ns.ID.Equal(u.Node.Netns.ID) {
		if l, err = returnedIn(ns, s, u); l != nil {
			return l, ns, nil
		}
	}
	ns.Close()
	return nil, nil, err
}

func returnedIn(ns *netns.Netns, s nic.Selector, u *attachment.Upstream) (*link.Link, error) {
	links, err := link.Links(ns)
	for _, l := range links {
		if r := unrecorded(u, l); hasReturned(l, u.IfName) && attachment.Selects(s, r.Loan) && mayTake(u.Node, r, l) {
			return l, nil
		}
	}
	return nil, err
}

// hasReturned reports whether l looks like a NIC that the kernel returned
// (default_device_exit_net). Its alias is its name on the host. Its name is its name in the pod, or
// dev<index> if the host had another link of that name.
func hasReturned(l *link.Link, ifName string) bool {
	return lentByAlias(l) && l.Alias != l.Name &&
		(l.Name == ifName || l.Name == fmt.Sprintf("dev%d", l.Index))
}

// unrecorded returns the record that the loan of l would have, as far as it can be derived from l.
func unrecorded(u *attachment.Upstream, l *link.Link) *ledger.Record {
	r := &ledger.Record{Key: u.Key, HostNetns: u.Node.HostNetns(), Netns: ledger.Netns{Path: u.Netns}}
	r.Loan = &ledger.Loan{Name: l.Alias, Identity: l.Identity(), Snapshot: &nicstate.Snapshot{
		Name: l.Alias, AltNames: l.AltNames, MTU: l.MTU, MAC: l.MAC.String(), TxQueueLen: l.TxQueueLen,
		Group: l.Group, Flags: l.SettableFlags(),
	}}
	r.Loan.PCI = u.Node.Host().NICOf(l).PCI
	return r
}
