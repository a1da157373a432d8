package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// MakeChild is the provision of macvlan: the pod gets a child of a NIC that
// stays on the host.
type MakeChild struct{ Conf *netconf.Macvlan }

// Claim finds the master and makes sure that it can carry the child.
func (p MakeChild) Claim(ctx context.Context, a *Adding, commit func() error) error {
	master, err := p.master(a)
	if err != nil {
		return err
	}
	c := p.Conf
	if !c.LinkInContainer {
		if err := a.Node.permit(a.Node.Host.Of(master), nil); err != nil {
			return err
		}
	}
	if master.Encap == "infiniband" {
		return cnierr.New(cnierr.InvalidConfig, "use the ipoib plugin for an InfiniBand port",
			"master %s is InfiniBand, which cannot carry a macvlan", master.Name)
	}
	if c.MTU > master.MTU {
		return cnierr.New(cnierr.InvalidConfig, "raise the master's MTU, or give a smaller one",
			"invalid MTU %d, must be [0, master MTU(%d)]", c.MTU, master.MTU)
	}
	if !master.IsUp() {
		// The kernel makes it all the same, and it works once the master is up.
		a.Node.Log.Warn("the master is down, no packet will pass", "master", master.Name, "cure", "ip link set "+master.Name+" up")
	}
	if a.Record.RDMA, err = p.findRDMA(a, master); err != nil {
		return err
	}
	a.Record.Child = &ledger.Child{Master: master.Name, MasterIndex: master.Index, Mode: c.Mode, InPod: c.LinkInContainer}
	if err := commit(); err != nil || c.LinkInContainer {
		return err
	}
	// Whoever lends the master at the same time writes its record, and then looks
	// for ours: one of us sees the other.
	holder, err := a.Node.Ledger.HolderOf(a.Node.Host.Of(master).Key(a.Node.Host.Netns.ID))
	if err == nil && holder != nil && holder.Loan.Driver == "" && a.Node.alive(holder) { // what is driven from user space stays here
		err = lentTo(holder)
	}
	return err
}

// where gives the netns that the master is in.
func (p MakeChild) where(a *Adding) *link.Netns {
	if p.Conf.LinkInContainer {
		return a.Pod
	}
	return a.Node.Host.Netns
}

func (p MakeChild) master(a *Adding) (*link.Link, error) {
	ns := p.where(a)
	if p.Conf.Master == "" {
		return defaultMaster(ns)
	}
	l, err := ns.ByName(p.Conf.Master)
	if !errors.Is(err, link.ErrNotFound) {
		return l, err
	}
	if !p.Conf.LinkInContainer {
		holder, holderErr := a.Node.holderOfSelected(nic.Selector{Device: p.Conf.Master})
		if holderErr == nil && holder != nil {
			return nil, lentTo(holder)
		}
	}
	return nil, cnierr.New(cnierr.NICNotFound, `see "ip link", and correct "master"`,
		"master %q does not exist in netns %s", p.Conf.Master, ns.Path)
}

// defaultMaster gives the interface of the default route.
func defaultMaster(ns *link.Netns) (*link.Link, error) {
	uplinks, err := ns.DefaultRouteLinks()
	if err != nil {
		return nil, err
	}
	if len(uplinks) == 0 {
		return nil, cnierr.New(cnierr.InvalidConfig, `name one by "master"`, "no default route interface found for the macvlan's master")
	}
	return ns.ByIndex(uplinks[0])
}

// Give creates the child in the pod netns.
func (p MakeChild) Give(_ context.Context, a *Adding) error {
	ns := p.where(a)
	master, err := ns.ByName(a.Record.Child.Master)
	if err != nil {
		return err
	}
	mac, err := p.Conf.HardwareAddr()
	if err != nil {
		return err
	}
	m := link.Macvlan{
		Master: master.Index, Name: a.IfName, Mode: p.Conf.Mode, MTU: p.Conf.MTU, MAC: mac, BCQueueLen: p.Conf.BCQueueLen,
	}
	err = ns.CreateMacvlan(a.Pod, m)
	if errors.Is(err, unix.EEXIST) && a.nameFree(a.IfName) == nil {
		// Kernels before 6.2 look the name up on the host: make it under
		// another, which only the pod sees.
		err = p.createRenamed(a, ns, m)
	}
	if err != nil {
		return p.refused(ns, master, err)
	}
	l, err := a.Pod.ByName(a.IfName)
	if err != nil {
		return err
	}
	a.Record.MAC, a.Record.Child.PodIndex = l.MAC.String(), l.Index
	return nil
}

func (p MakeChild) createRenamed(a *Adding, ns *link.Netns, m link.Macvlan) error {
	name := m.Name
	m.Name = bornAs(a.Record)
	if err := ns.CreateMacvlan(a.Pod, m); err != nil {
		return err
	}
	l, err := a.Pod.ByName(m.Name)
	if err != nil {
		return err
	}
	if err := a.Pod.Rename(l.Index, name); err != nil {
		return errors.Join(err, a.Pod.Delete(l.Index))
	}
	return nil
}

// bornAs is the name that createRenamed gives the attachment's macvlan at first.
func bornAs(r *ledger.Record) string {
	return fmt.Sprintf("rail%011x", r.Created.UnixNano()&0xfffffffffff)
}

// refused says in the user's words why the kernel made no macvlan.
func (p MakeChild) refused(ns *link.Netns, master *link.Link, err error) error {
	what := fmt.Sprintf("the kernel makes no macvlan on %s", master.Name)
	switch {
	case errors.Is(err, unix.EBUSY) && hasKind(ns, master, "ipvlan", "ipvtap"):
		return cnierr.Wrap(err, cnierr.InvalidConfig, "end the pods that use ipvlan on it, or use another master",
			"%s: it has ipvlan children, and a NIC carries one kind or the other", what)
	case errors.Is(err, unix.EBUSY):
		return cnierr.Wrap(err, cnierr.InvalidConfig, "use another master, or take it out of its bridge or bond",
			"%s: something else receives its packets (a bridge, a bond, ipvlan in another netns, or a passthru macvlan)", what)
	case errors.Is(err, unix.EINVAL):
		return cnierr.Wrap(err, cnierr.InvalidConfig, `check "mode" and "mac": passthru allows one child, and a MAC must be unicast`, "%s", what)
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EADDRNOTAVAIL):
		return cnierr.Wrap(err, cnierr.InvalidConfig, "give it another MAC", "%s with MAC %s", what, p.Conf.MAC)
	}
	return cnierr.Wrap(err, cnierr.Kernel, "see the kernel log", "%s", what)
}

func hasKind(ns *link.Netns, master *link.Link, kinds ...string) bool {
	links, err := ns.Links()
	return err == nil && slices.ContainsFunc(links, func(l *link.Link) bool {
		return l.Lower == master.Index && !l.LowerAway && slices.Contains(kinds, l.Kind)
	})
}

// findRDMA finds the RDMA device of the master, through whose port the pod's
// RDMA traffic goes. In exclusive mode there is no way from a pod to it.
func (p MakeChild) findRDMA(a *Adding, master *link.Link) (*ledger.RDMA, error) {
	if p.Conf.LinkInContainer {
		return nil, nil // the master is the pod's own, and so is its RDMA device
	}
	r, err := a.findRDMA(master, p.Conf.RDMA, []string{nic.AllowSharedRDMA})
	if r == nil || err != nil || r.Mode != string(rdma.Exclusive) {
		return r, err
	}
	exclusive := cnierr.New(cnierr.NotAvailable,
		rdma.AtBoot(rdma.Shared)+`; or lend whole NICs with host-device; or set "rdma": "off"`,
		"RDMA is in exclusive mode: a macvlan on %s cannot use its RDMA device", master.Name)
	if p.Conf.RDMA.RDMA == netconf.RDMARequired {
		return nil, exclusive
	}
	a.Node.Log.Warn("the pod gets no RDMA", "err", exclusive)
	return nil, nil
}

// Configure makes sure that the port's GID table has room for the addresses:
// in a full one the kernel drops them without a word.
func (p MakeChild) Configure(a *Adding, _ *link.Link, l3 *layer3) error {
	r := a.Record.RDMA
	if r == nil {
		return nil
	}
	core, err := rdma.Open(a.Node.Host.Netns)
	if err != nil {
		return err
	}
	defer core.Close()
	for _, d := range r.Devices {
		device, err := one(core, d)
		if err != nil || device == nil || d.Port == 0 || device.Protocol != "roce" {
			continue
		}
		table, err := core.GIDs(*device, d.Port)
		if err != nil {
			return err
		}
		// Two entries for each address, one of each RoCE type, and two for
		// the link-local one.
		if need := 2 * (len(l3.addresses()) + 1); table.Free() < need {
			return cnierr.New(cnierr.TryAgain, `end other pods on this NIC, spread them over more NICs, or set "rdma": "off"`,
				"the GID table of %s port %d has %d of %d entries free, %d are needed", d.Name, d.Port, table.Free(), table.Size, need)
		}
	}
	return nil
}

// Finish waits for the GIDs of the addresses on the master's port.
func (p MakeChild) Finish(ctx context.Context, a *Adding, l3 *layer3) error {
	return a.awaitGIDs(ctx, a.Node.Host.Netns, p.Conf.RDMA, l3)
}

// TakeBackUnrecorded deletes a macvlan that upstream's plugin made.
func (p MakeChild) TakeBackUnrecorded(_ context.Context, _ *Node, c *Call, pod *link.Netns) error {
	if pod == nil {
		return nil // it died with its netns
	}
	l, err := pod.ByName(c.IfName)
	if errors.Is(err, link.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.Kind != "macvlan" {
		return nil // another interface has the name
	}
	return deleteMacvlans(pod, []*link.Link{l}, false, func() {})
}

// Available says whether the master that the configuration names is there.
func (p MakeChild) Available(n *Node) error {
	if p.Conf.LinkInContainer {
		return nil // it is in each pod
	}
	master, err := p.master(&Adding{Node: n})
	if err != nil {
		return err
	}
	if err := n.permit(n.Host.Of(master), nil); err != nil {
		return err
	}
	return n.availableRDMA(p.Conf.RDMA, true)
}
