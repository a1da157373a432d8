package macvlan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/parent"
)

// Part is a macvlan on a NIC that stays on the host or in the pod. It must be claimed before the
// RDMA devices, because they are found by [attachment.Tx.Parent], which this part sets.
type Part struct {
	attachment.Base
	Conf *netconf.Macvlan
}

// Name implements [attachment.Part].
func (Part) Name() string { return "macvlan" }

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.Child != nil && r.Child.Kind == "" }

// Claim finds the parent and makes sure that it can carry the macvlan.
func (p Part) Claim(_ context.Context, tx *attachment.Tx) error {
	found, err := p.find(tx.Node, p.parentNetns(tx))
	if err != nil {
		return err
	}
	found.SetRail(tx)
	c, parent := p.Conf, found.Link
	if !c.LinkInContainer {
		host := tx.Node.Host()
		if err := host.Permit(host.NICOf(parent), tx.Node.File, nil); err != nil {
			return err
		}
		tx.Parent = parent // a parent in the pod belongs to the pod, and so does its RDMA device
	}
	if parent.Encap == "infiniband" {
		return failure.New(failure.InvalidConfig, "master %s is InfiniBand, which cannot carry a macvlan", parent.Name).
			Cure("use the ipoib plugin for an InfiniBand port")
	}
	if c.MTU > parent.MTU {
		return failure.New(failure.InvalidConfig, "invalid MTU %d, must be [0, master MTU(%d)]", c.MTU, parent.MTU).
			Cure(`raise the master's MTU, or set a smaller "mtu"`)
	}
	if !parent.IsUp() {
		// The kernel makes the macvlan anyway. The macvlan works as soon as the parent is up.
		tx.Node.Log.Warn("master is down", "master", parent.Name, "cure", "ip link set "+parent.Name+" up")
	}
	tx.Record.Child = &ledger.Child{Master: parent.Name, MasterIndex: parent.Index, Mode: c.Mode, InPod: c.LinkInContainer, Lower: lowerOf(parent, c.LinkInContainer)}
	return nil
}

// lowerOf returns the link on which a macvlan of a pod lies, or nil if that link is the parent.
func lowerOf(parent *link.Link, inPod bool) *ledger.Lower {
	if parent.Kind != "macvlan" && parent.Kind != "macvtap" {
		return nil
	}
	return &ledger.Lower{Index: parent.Lower, OutsidePod: !inPod || parent.LowerInOtherNetns}
}

// Confirm returns an error if the parent is lent. An ADD that lends the parent first writes its
// record and then looks for ours, so at least one of the two ADDs sees the other. A NIC that a
// userspace driver holds does not count, because it has no netdev that could leave the host.
func (p Part) Confirm(tx *attachment.Tx) error {
	if tx.Parent == nil {
		return nil
	}
	holder, err := tx.Node.Ledger.HolderOf(tx.Node.Host().NICOf(tx.Parent).Key(tx.Node.Netns.ID))
	if err == nil && holder != nil && holder.LendsNetdev() && tx.Node.Alive(holder) {
		err = ledger.LentTo(holder)
	}
	return err
}

// parentNetns returns the parent's netns.
func (p Part) parentNetns(tx *attachment.Tx) *netns.Netns {
	if p.Conf.LinkInContainer {
		return tx.Pod
	}
	return tx.Node.Netns
}

// find returns the parent. ns is the netns of the parent.
func (p Part) find(n *attachment.Node, ns *netns.Netns) (parent.Found, error) {
	c := p.Conf
	return parent.Of(parent.Conf{Master: c.Master, Rail: c.Rail, InPod: c.LinkInContainer, NeedsRail: c.NeedsRail(), RailCure: c.RailCure}, n, ns)
}

// Apply makes the macvlan in the pod netns, down and without addresses.
func (p Part) Apply(_ context.Context, tx *attachment.Tx) error {
	ns, child := p.parentNetns(tx), tx.Record.Child
	mac, err := p.Conf.HardwareAddr()
	if err != nil {
		return err
	}
	m := link.Macvlan{
		Master: child.MasterIndex, Name: tx.IfName, Mode: p.Conf.Mode, MTU: p.Conf.MTU, MAC: mac, BCQueueLen: p.Conf.BCQueueLen,
	}
	err = link.CreateMacvlan(ns, tx.Pod, m)
	if errors.Is(err, unix.EEXIST) && tx.NameFree(tx.IfName) == nil {
		// Kernels before 6.2 look up the name on the host, not in the pod. So make the macvlan
		// under another name, which only the pod sees, and then rename it.
		err = createRenamed(tx, ns, m)
	}
	if err != nil {
		return p.refused(ns, child, err)
	}
	if tx.Link, err = link.ByName(tx.Pod, tx.IfName); err != nil {
		return err
	}
	tx.Record.MAC, child.PodIndex = tx.Link.MAC.String(), tx.Link.Index
	return tx.Step("mtu")
}

func createRenamed(tx *attachment.Tx, ns *netns.Netns, m link.Macvlan) error {
	name := m.Name
	m.Name = tempName(tx.Record)
	if err := link.CreateMacvlan(ns, tx.Pod, m); err != nil {
		return err
	}
	l, err := link.ByName(tx.Pod, m.Name)
	if err != nil {
		return err
	}
	if err := link.Rename(tx.Pod, l.Index, name); err != nil {
		return errors.Join(err, link.Delete(tx.Pod, l.Index))
	}
	return nil
}

// tempName returns the name under which createRenamed makes the attachment's macvlan.
func tempName(r *ledger.Record) string {
	return fmt.Sprintf("rail%011x", r.Created.UnixNano()&0xfffffffffff)
}

// minMTU is the smallest MTU of a macvlan, in bytes (ETH_MIN_MTU).
const minMTU = 68

// refused returns the error for a macvlan that the kernel refused to make.
func (p Part) refused(ns *netns.Netns, child *ledger.Child, err error) error {
	what := fmt.Sprintf("the kernel refused a macvlan on %s", child.Master)
	switch {
	case errors.Is(err, unix.ENODEV):
		return failure.From(err, failure.TryAgain, "the master %s (index %d) left netns %s while the macvlan was being made",
			child.Master, child.MasterIndex, ns.Path).
			Cure(`see "ip link"`)
	case errors.Is(err, unix.EBUSY) && hasKind(ns, child.MasterIndex, "ipvlan", "ipvtap"):
		return failure.From(err, failure.InvalidConfig, "%s: it has ipvlan children, and a NIC cannot have both ipvlan and macvlan children", what).
			Cure("end the pods that use ipvlan on this NIC, or use another master")
	case errors.Is(err, unix.EBUSY):
		return failure.From(err, failure.InvalidConfig,
			"%s: something else receives its packets (a bridge, a bond, ipvlan in another netns, or a passthru macvlan)", what).
			Cure("use another master, or take this NIC out of its bridge or bond")
	case errors.Is(err, unix.EINVAL) && p.Conf.MTU > 0 && p.Conf.MTU < minMTU:
		return failure.From(err, failure.InvalidConfig, "%s with MTU %d", what, p.Conf.MTU).Cure(`set "mtu" to at least 68 bytes, or 1280 with IPv6`)
	case errors.Is(err, unix.EINVAL):
		return failure.From(err, failure.InvalidConfig, "%s", what).Cure(`check "mode" and "mac": passthru allows one child, and a MAC must be unicast`)
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EADDRNOTAVAIL):
		return failure.From(err, failure.InvalidConfig, "%s with MAC %s", what, p.Conf.MAC).Cure("use another MAC")
	}
	return failure.From(err, failure.Kernel, "%s", what).Cure("see the kernel log")
}

func hasKind(ns *netns.Netns, master int, kinds ...string) bool {
	links, err := link.Links(ns)
	return err == nil && slices.ContainsFunc(links, func(l *link.Link) bool {
		return l.Lower == master && !l.LowerInOtherNetns && slices.Contains(kinds, l.Kind)
	})
}

// Check returns an error unless the interface is a macvlan such as ADD makes.
func (p Part) Check(_ context.Context, c *attachment.Checking) error {
	switch l := c.Link; {
	case l == nil:
		return attachment.Mismatch("interface %s is not in netns %s", c.IfName, c.Netns)
	case l.Kind != "macvlan":
		return attachment.Mismatch("interface %s has kind %s, want macvlan", l.Name, l.Kind)
	case l.Mode != p.Conf.Mode:
		return attachment.Mismatch("interface %s is a macvlan in mode %s, not %s", l.Name, l.Mode, p.Conf.Mode)
	}
	return nil
}

// TakeOver deletes a macvlan that upstream's plugin made.
func (Part) TakeOver(_ context.Context, u *attachment.Upstream) error {
	if u.Pod == nil {
		return nil // the macvlan was deleted with its netns
	}
	l, err := link.ByName(u.Pod, u.IfName)
	if errors.Is(err, link.ErrNotFound) || err == nil && l.Kind != "macvlan" {
		return nil // another interface may have the name
	}
	if err != nil {
		return err
	}
	return deleteAll(u.Pod, []*link.Link{l}, false, func() {})
}

// Available returns the reason why the configured parent cannot be used.
func (p Part) Available(n *attachment.Node) error {
	if p.Conf.LinkInContainer {
		return nil // the parent is in the pod, so it is not known here
	}
	found, err := p.find(n, n.Netns)
	if err != nil {
		return err
	}
	host := n.Host()
	return host.Permit(host.NICOf(found.Link), n.File, nil)
}
