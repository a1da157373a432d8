package parent

import (
	"errors"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/part/rails"
)

// Conf selects the parent. If several fields are set, Master comes first, then IDs, then Rail. If
// none is set, the default route selects the parent.
type Conf struct {
	Master string // the name or an altname of the parent
	Rail   netconf.Rail
	IDs    []string // IDs of devices; the runtime's IDs come first
	InPod  bool     // the parent is in the pod netns
	// NeedsRail reports whether an attachment needs the rail of its NIC.
	NeedsRail bool
	// RailCure adds the cure for the network to an error about a missing rail.
	RailCure func(error) error
}

// Found is a parent, and its rail.
type Found struct {
	*link.Link
	rail  *int
	rails *rails.Rails
}

// SetRail sets the rail for the other parts, if the network needs it.
func (f Found) SetRail(tx *attachment.Tx) {
	if f.rail != nil {
		f.rails.SetRail(tx, *f.rail)
	}
}

// Of returns the parent that c selects. ns is the netns of the parent. If c.NeedsRail is true, Of
// returns an error if the parent has no rail, or has another rail than c.Rail.
func Of(c Conf, n *attachment.Node, ns *netns.Netns) (Found, error) {
	var f Found
	if c.NeedsRail {
		var err error
		if f.rails, err = rails.Read(n, n.Host()); err != nil {
			return f, c.RailCure(err)
		}
	}
	var err error
	if f.Link, err = c.find(n, ns, f.rails); err != nil || f.rails == nil {
		return f, err
	}
	rail, err := f.rails.RailOf(n.Host().NICOf(f.Link), c.Rail)
	f.rail = &rail
	return f, c.RailCure(err)
}

func (c Conf) find(n *attachment.Node, ns *netns.Netns, r *rails.Rails) (*link.Link, error) {
	if c.Master != "" {
		return c.named(n, ns)
	}
	if s, ok := allocated(n.Host(), c.IDs); ok {
		return selected(n, s, s.String())
	}
	if c.Rail.Number != nil {
		s, err := r.Selector(*c.Rail.Number)
		if err != nil {
			return nil, err
		}
		return selected(n, s, fmt.Sprintf("the NIC of rail %d, %s", *c.Rail.Number, s))
	}
	return ofDefaultRoute(ns)
}

// allocated returns the selector for the first ID that is a device of the host.
func allocated(host *nic.Host, ids []string) (s nic.Selector, ok bool) {
	for _, id := range ids {
		switch {
		case host.IsPCI(id):
			return nic.Selector{PCI: id}, true
		case host.IsAux(id):
			return nic.Selector{Aux: id}, true
		}
	}
	return s, false
}

// named returns the link that the configuration names.
func (c Conf) named(n *attachment.Node, ns *netns.Netns) (*link.Link, error) {
	l, err := link.ByName(ns, c.Master)
	if !errors.Is(err, link.ErrNotFound) {
		return l, err
	}
	if !c.InPod {
		holder, holderErr := n.HolderOf(nic.Selector{Device: c.Master})
		if holderErr == nil && holder != nil {
			return nil, ledger.LentTo(holder)
		}
	}
	return nil, failure.New(failure.NICNotFound, "master %q does not exist in netns %s", c.Master, ns.Path).
		Cure(`see "ip link", and correct "master"`)
}

// selected returns the netdev of the NIC that s selects. what describes the NIC in errors.
func selected(n *attachment.Node, s nic.Selector, what string) (*link.Link, error) {
	found, err := n.Host().Select(s)
	switch {
	case errors.Is(err, nic.ErrNotFound):
		if holder, holderErr := n.HolderOf(s); holder != nil && holderErr == nil {
			return nil, ledger.LentTo(holder)
		}
		return nil, failure.From(err, failure.NICNotFound, "%s", what).Cure("see `railctl nics`")
	case err != nil:
		return nil, err
	case found.Link == nil:
		return nil, failure.New(failure.InvalidConfig, "%s has no netdev: the driver %s holds it", what, found.Driver).
			Cure("bind it to its kernel driver, load the driver that makes its netdev (ib_ipoib for InfiniBand), or use another NIC")
	}
	return found.Link, nil
}

// ofDefaultRoute returns the interface of the default route.
func ofDefaultRoute(ns *netns.Netns) (*link.Link, error) {
	uplinks, err := link.DefaultRouteLinks(ns)
	if err != nil {
		return nil, err
	}
	if len(uplinks) == 0 {
		return nil, failure.New(failure.InvalidConfig, "no default route interface found for the master").Cure(`name one by "master"`)
	}
	return link.ByIndex(ns, uplinks[0])
}
