package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// LendNIC is the provision of host-device: a NIC of the host moves into the
// pod netns.
type LendNIC struct{ Conf *netconf.HostDevice }

// Selector gives what the configuration selects on this host. An injected id
// that names no device of the host (a device plugin's own numbers) is passed
// over when something else selects.
func (p LendNIC) Selector(h *nic.Host) (nic.Selector, error) {
	c := p.Conf
	s := nic.Selector{Device: c.Device, HWAddr: c.HWAddr, KernelPath: c.KernelPath}
	for _, id := range c.IDs() {
		if h.IsPCI(id) {
			s.PCI = id
			break
		}
		if h.IsAux(id) {
			s.Aux = id
			break
		}
	}
	if s.IsZero() && len(c.IDs()) > 0 {
		return s, cnierr.New(cnierr.NICNotFound, "see `ls /sys/bus/pci/devices /sys/bus/auxiliary/devices`, or name the NIC by \"device\"",
			"device id %q is neither a PCI nor an auxiliary device of this host", c.IDs()[0])
	}
	if s.IsZero() {
		return s, cnierr.New(cnierr.InvalidConfig, `specify either "device", "hwaddr", "kernelpath" or "pciBusID", `+
			"or have the pod ask for the resource in the NAD's annotation k8s.v1.cni.cncf.io/resourceName",
			"the network names no NIC, and no device plugin gave one")
	}
	return s, nil
}

// Claim chooses the NIC, makes sure that nobody else has it and that the host
// can spare it, and records its state.
func (p LendNIC) Claim(ctx context.Context, a *Adding, commit func() error) error {
	if bad := slices.IndexFunc(p.Conf.Allow, func(k string) bool { return !slices.Contains(nic.Overrides, k) }); bad >= 0 {
		return cnierr.New(cnierr.InvalidConfig, "use "+strings.Join(nic.Overrides, ", "), `"allow" has no key %q`, p.Conf.Allow[bad])
	}
	n := a.Node
	s, err := p.Selector(&n.Host)
	if err != nil {
		return err
	}
	found, err := n.selectNIC(ctx, s)
	if err != nil {
		return err
	}
	if err := n.permit(found, p.Conf.Allow); err != nil {
		return err
	}
	key := found.Key(n.Host.Netns.ID) // whoever drives it
	if p.Conf.DPDKMode && found.Link != nil {
		found = &nic.NIC{PCI: found.PCI, Driver: "DPDKMode"}
	}
	if p.Conf.UseInterfaceNetwork && found.Link == nil {
		return cnierr.New(cnierr.InvalidConfig, "give addresses by IPAM", `"useInterfaceNetwork" needs a netdev, but a userspace driver holds %s`, s)
	}
	lock, err := n.Ledger.LockNIC(ctx, key)
	if err != nil {
		return err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	if err := n.free(a.Key, key); err != nil {
		return err
	}
	loan := &ledger.Loan{NIC: key, PCI: found.PCI, Driver: found.Driver}
	if found.Link != nil {
		if err := p.snapshot(a, found.Link, loan); err != nil {
			return err
		}
	}
	a.Record.Loan = loan
	if err := commit(); err != nil || loan.Driver != "" {
		return err
	}
	// After the record is there: a macvlan's ADD writes its own, and then looks
	// for ours.
	return p.guardPodChildren(a, loan.Name)
}

// free fails when another attachment holds the NIC.
func (n *Node) free(mine ledger.Key, nicKey string) error {
	holder, err := n.Ledger.HolderOf(nicKey)
	if err != nil || holder == nil || holder.Key == mine {
		return err
	}
	return lentTo(holder)
}

func lentTo(holder *ledger.Record) error {
	return cnierr.New(cnierr.NICLent, "wait until that attachment ends, or choose another NIC",
		"%s is lent to %s since %s (%s)", holder.NICName(), holder.Holder(), holder.Created.Format(time.RFC3339), holder.Phase)
}

func (p LendNIC) snapshot(a *Adding, chosen *link.Link, loan *ledger.Loan) error {
	// Read again under the lock: another loan may have come and gone.
	l, err := a.Node.Host.Netns.ByIndex(chosen.Index)
	if err != nil {
		return fmt.Errorf("the NIC left while it was chosen: %w", err)
	}
	if l.Name != chosen.Name {
		return cnierr.New(cnierr.TryAgain, "", "the NIC %s was renamed to %s while it was chosen", chosen.Name, l.Name)
	}
	if err := a.Node.Host.Guard(l, p.Conf.Allow); err != nil {
		return err
	}
	if err := a.nameFree(l.AltNames...); err != nil {
		return err
	}
	if a.Record.RDMA, err = a.findRDMA(l, p.Conf.RDMA, p.Conf.Allow); err != nil {
		return err
	}
	if err := movableWithRDMA(l, a.Record.RDMA); err != nil {
		return err
	}
	loan.Name, loan.Identity = l.Name, l.Identity()
	if below := nic.LiesOn(l); below != 0 {
		on, err := a.Node.Host.Netns.ByIndex(below)
		if err != nil {
			return err
		}
		loan.LiesOn = on.Name
	}
	if loan.Above, err = a.above(l.Index); err != nil {
		return err
	}
	loan.Snapshot, err = a.Node.Host.Netns.Snapshot(l)
	if err == nil && slices.Contains(p.Conf.Allow, nic.AllowBPF) {
		loan.Snapshot.Programs, err = a.Node.Host.Netns.Programs(l.Index)
	}
	if err == nil && slices.Contains(p.Conf.Allow, nic.AllowVFs) {
		loan.Snapshot.Functions, err = a.Node.Host.Netns.Functions(l.Index)
	}
	return err
}

// movableWithRDMA fails for an InfiniBand interface whose RDMA device would move.
// ib_ipoib, a client of the RDMA device, makes the interface. The move destroys
// it with its addresses and settings, and makes another one in init_net that
// cannot be recognized as the same (ipoib_add_one).
func movableWithRDMA(l *link.Link, r *ledger.RDMA) error {
	if l.Encap != "infiniband" || r == nil || r.Mode != string(rdma.Exclusive) {
		return nil
	}
	return cnierr.New(cnierr.NICProtected, rdma.AtBoot(rdma.Shared)+`; or lend it without its RDMA device by "rdma": "off"`,
		"%s must stay on the host: RDMA is in exclusive mode, and the kernel destroys an InfiniBand interface when its RDMA device %s moves", l.Name, r.Devices[0].Name)
}

// guardPodChildren is the guardrail "children" for those that pods have: the
// host sees no macvlan or VLAN that is in another netns, but the ledger knows them.
func (p LendNIC) guardPodChildren(a *Adding, name string) error {
	if slices.Contains(p.Conf.Allow, nic.AllowChildren) {
		return nil
	}
	records, errs := a.Node.Ledger.List()
	for _, r := range records {
		kind := ""
		switch {
		case r.Child != nil && !r.Child.InPod && r.Child.Master == name:
			kind = "macvlan"
		case r.Loan != nil && r.Loan.LiesOn == name && r.Phase != ledger.Freeing:
			kind = r.Loan.Identity.Kind
		}
		if kind == "" || !r.HostNetns.Equal(a.Node.Host.Netns.ID) || !a.Node.alive(r) {
			continue
		}
		return cnierr.New(cnierr.NICProtected,
			fmt.Sprintf(`choose another NIC, or add "allow": [%q] to the config if that pod may lose its interface`, nic.AllowChildren),
			"%s must stay on the host: a %s on it belongs to %s", name, kind, r.Holder())
	}
	for _, err := range errs {
		a.Node.Log.Warn("a record cannot be read: it may be of a link on the NIC", "nic", name, "err", err)
	}
	return nil
}

// selectNIC finds the NIC on the host, or says who has it. A NIC whose holder's
// netns is gone is home already, under whatever name, or on its way: it is
// brought into order first. Meanwhile another ADD may take it.
func (n *Node) selectNIC(ctx context.Context, s nic.Selector) (*nic.NIC, error) {
	for tries := 0; ; tries++ {
		found, err := n.Host.Select(s)
		var holder *ledger.Record
		var holderErr error
		switch {
		case err == nil:
			holder, holderErr = n.Ledger.HolderOf(found.Key(n.Host.Netns.ID))
		case errors.Is(err, nic.ErrNotFound):
			holder, holderErr = n.holderOfSelected(s)
			err = cnierr.Wrap(err, cnierr.NICNotFound, "see `ip link`, and `railctl show` for those that are lent", "")
		}
		if holder == nil || holderErr != nil {
			return found, errors.Join(err, holderErr)
		}
		if n.alive(holder) || tries == selectTries {
			return nil, lentTo(holder)
		}
		if err := n.endOf(ctx, holder, homeWait); err != nil {
			return nil, err
		}
	}
}

// selectTries bounds how many attachments in turn are found dead that hold the
// same NIC.
const selectTries = 5

// endOf ends another attachment, waiting for its lock and its NIC, if it is still
// the one that was judged.
func (n *Node) endOf(ctx context.Context, judged *ledger.Record, wait time.Duration) error {
	unlock, err := n.lock(ctx, judged.Key)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := n.Ledger.Get(judged.Key)
	if errors.Is(err, ledger.ErrNoRecord) {
		return nil
	}
	if err != nil || !r.Same(judged) {
		return err
	}
	return n.settle(ctx, r, wait)
}

// holderOfSelected finds the loan of this host netns whose NIC, as it was on
// the host, is what s means.
func (n *Node) holderOfSelected(s nic.Selector) (*ledger.Record, error) {
	records, errs := n.Ledger.List()
	for _, r := range records {
		if r.Loan != nil && r.Phase != ledger.Freeing && r.HostNetns.Equal(n.Host.Netns.ID) && selects(s, r.Loan) {
			return r, nil
		}
	}
	return nil, errors.Join(errs...)
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

func selects(s nic.Selector, l *ledger.Loan) bool {
	switch {
	case s.Device != "":
		return l.Name == s.Device || l.Snapshot != nil && slices.Contains(l.Snapshot.AltNames, s.Device)
	case s.HWAddr != "":
		return l.Snapshot != nil && strings.EqualFold(l.Snapshot.MAC, s.HWAddr)
	case s.KernelPath != "":
		return l.Identity.ParentDev != "" && strings.HasSuffix(strings.TrimRight(s.KernelPath, "/"), "/"+l.Identity.ParentDev)
	case s.PCI != "":
		return l.PCI == s.PCI
	default:
		return l.Identity.ParentDev == s.Aux
	}
}

// Give moves the NIC into the pod netns under its name there. The alias keeps
// the host's name, as upstream's plugin does, so that either can end what the
// other began.
//
// The RDMA device goes first: it can refuse.
func (p LendNIC) Give(ctx context.Context, a *Adding) error {
	loan := a.Record.Loan
	if loan.Driver != "" {
		return nil
	}
	if err := a.lendRDMA(ctx); err != nil {
		return err
	}
	l, err := a.Node.Host.Netns.ByName(loan.Name)
	if err != nil {
		return err
	}
	if now, was := l.Identity(), loan.Identity; now.ParentDev != was.ParentDev || now.PermMAC != was.PermMAC || !l.HasParent() && now.Index != was.Index {
		return cnierr.New(cnierr.TryAgain, "", "another NIC has taken the name %s meanwhile", loan.Name)
	}
	if err := a.Node.Host.Netns.Detach(l.Index, loan.Snapshot.Programs); err != nil {
		return cnierr.Wrap(err, cnierr.Kernel, "", "lend %s without the host's BPF programs", loan.Name)
	}
	err = a.Node.Host.Netns.Move(l.Index, a.Pod, a.IfName, loan.Name)
	return cnierr.Wrap(err, cnierr.Kernel, "see the kernel log for the driver's reason", "lend %s", loan.Name)
}

// Finish waits for the GIDs of the addresses.
func (p LendNIC) Finish(ctx context.Context, a *Adding, l3 *layer3) error {
	if r := a.Record.RDMA; r == nil || r.Mode == string(rdma.Shared) {
		return a.awaitGIDs(ctx, a.Node.Host.Netns, p.Conf.RDMA, l3)
	}
	return a.awaitGIDs(ctx, a.Pod, p.Conf.RDMA, l3)
}

// Configure sets the MTU, and carries the host's addresses and routes along
// when the configuration asks for it.
func (p LendNIC) Configure(a *Adding, l *link.Link, l3 *layer3) error {
	if p.Conf.MTU != 0 && p.Conf.MTU != l.MTU {
		if err := a.Pod.SetMTU(l.Index, p.Conf.MTU); err != nil {
			return cnierr.Wrap(err, cnierr.InvalidConfig, fmt.Sprintf("see `ip -d link show %s` for its limits (maxmtu)", a.Record.Loan.Name),
				"%s does not take MTU %d", a.Record.Loan.Name, p.Conf.MTU)
		}
	}
	if !p.Conf.UseInterfaceNetwork {
		return nil
	}
	return carry(a, l, l3)
}

// carry gives the interface the addresses that the NIC had on the host, and
// keeps the routes and rules for when it is up.
func carry(a *Adding, l *link.Link, l3 *layer3) error {
	c := a.Record.Loan.Snapshot.Carried()
	if lost := a.Pod.ReplayAddresses(l.Index, c.Snapshot); len(lost) > 0 {
		return fmt.Errorf("addresses carried from the host: %w", errors.Join(lost...))
	}
	rules, err := a.Node.Host.Netns.Rules(c.Addresses, c.Tables)
	if err != nil {
		return err
	}
	l3.carried, l3.carriedRule = c.Snapshot, rules
	for _, ip := range c.Addresses {
		l3.carriedIPs = append(l3.carriedIPs, &current.IPConfig{Address: *ip})
	}
	for _, r := range c.Routes {
		l3.carriedTo = append(l3.carriedTo, cniRoute(r))
	}
	return nil
}

// TakeBackUnrecorded brings home a NIC that upstream's host-device lent, or that
// ours lent and whose record is lost: the alias of the interface is its name on
// the host. Such a NIC comes back down, because nobody knows how it was.
//
// The pod chooses the names and aliases of its links. So the host takes back only
// a NIC with a device, which the configuration selects and the node file opens.
func (p LendNIC) TakeBackUnrecorded(ctx context.Context, n *Node, c *Call, pod *link.Netns) error {
	if pod == nil {
		return p.takeBackFallen(ctx, n, c)
	}
	l, err := pod.ByName(c.IfName)
	if errors.Is(err, link.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r := n.unrecorded(c, l)
	s, err := p.Selector(&n.Host)
	if err != nil || !lentByAlias(l) || !selects(s, r.Loan) || !n.mayTake(r, l) {
		return nil
	}
	r.Netns.NetnsID = pod.ID
	return n.moveHome(ctx, r, pod, n.Host.Netns, l, func() {})
}

// lentByAlias reports whether l is a NIC with a device whose alias can be its name
// on the host.
func lentByAlias(l *link.Link) bool {
	return l.HasParent() && validIfName(l.Alias)
}

// mayTake reports whether the host may take back l, which only its alias marks as
// lent: the node file must open it, and no attachment may have it, or another NIC
// of that name.
func (n *Node) mayTake(r *ledger.Record, l *link.Link) bool {
	known := *l
	known.Name = l.Alias
	found := n.Host.Of(&known)
	if err := n.permit(found, nil); err != nil {
		n.Log.Warn("NIC without a record left in place", "nic", l.Alias, "err", err)
		return false
	}
	key := found.Key(n.Host.Netns.ID)
	return !n.anotherHas(r, func(o *ledger.Record) bool {
		held := o.Loan != nil && (o.Loan.NIC == key || o.HostNetns.Equal(n.Host.Netns.ID) && o.Loan.Name == l.Alias)
		if held {
			n.log(o).Warn("NIC without a record left in place: an attachment has it or its name", "alias", l.Alias, "device", l.ParentDev)
		}
		return held
	})
}

// Available says whether the NIC that the configuration names is on this host,
// or lent. A network whose NIC is named with each pod has none to look for.
func (p LendNIC) Available(n *Node) error {
	if err := n.availableRDMA(p.Conf.RDMA, false); err != nil {
		return err
	}
	s, err := p.Selector(&n.Host)
	if err != nil {
		if len(p.Conf.IDs()) == 0 {
			return nil
		}
		return err
	}
	found, err := n.Host.Select(s)
	if err == nil {
		return n.permit(found, p.Conf.Allow)
	}
	if holder, _ := n.holderOfSelected(s); holder != nil {
		return nil
	}
	return err
}
