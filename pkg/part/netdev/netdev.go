package netdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/rails"
)

// Part is a NIC of the host that moves into the pod netns. It must be claimed before the RDMA
// devices, because they are found by [attachment.Tx.Parent], which this part sets.
type Part struct {
	attachment.Base
	Conf *netconf.HostDevice
	MAC  net.HardwareAddr // in the pod; nil keeps the NIC's own
	// NewGUID is set if another part gives the InfiniBand port a GUID, so that the port does not
	// need a GUID yet.
	NewGUID bool

	// selected and chosen are what Holder found, for Claim: the selector, and the NIC if no
	// attachment has the NIC.
	selected nic.Selector
	chosen   *nic.NIC

	rails *rails.Rails // the rails of the node, nil until they are needed
}

// Name implements [attachment.Part].
func (*Part) Name() string { return "netdev" }

// Recorded implements [attachment.Part].
func (*Part) Recorded(r *ledger.Record) bool { return r.Loan != nil }

// selector returns the selector for the configuration on this host. A device ID that the runtime
// passed may not be a device of the host, because some device plugins use numbers of their own.
// Such an ID is ignored if there is another selector. The rail selects the NIC only if nothing else
// does.
func (p *Part) selector(n *attachment.Node, h *nic.Host) (nic.Selector, error) {
	c := p.Conf
	s := static(c)
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
	switch {
	case !s.IsZero():
		return s, nil
	case c.Rail.Number != nil:
		rails, err := p.railsOf(n, h)
		if err != nil {
			return s, err
		}
		return rails.Selector(*c.Rail.Number)
	case len(c.IDs()) > 0:
		return s, failure.New(failure.NICNotFound, "device id %q is neither a PCI nor an auxiliary device of this host", c.IDs()[0]).
			Cure("see `ls /sys/bus/pci/devices /sys/bus/auxiliary/devices`; if the resource is shared, its device ids are numbers: name the NIC by \"device\" or \"rail\"")
	}
	return s, failure.New(failure.InvalidConfig, "the network names no NIC, and no device plugin has allocated one").
		Cure(`give the NAD the annotation k8s.v1.cni.cncf.io/resourceName and have the pod request that resource, ` +
			`or specify either "device", "hwaddr", "kernelpath" or "pciBusID", or "rail"`)
}

// static returns the selector that the author of the network wrote.
func static(c *netconf.HostDevice) nic.Selector {
	return nic.Selector{Device: c.Device, HWAddr: c.HWAddr, KernelPath: c.KernelPath}
}

// railsOf returns the rails of the node. It reads them only once.
func (p *Part) railsOf(n *attachment.Node, h *nic.Host) (*rails.Rails, error) {
	var err error
	if p.rails == nil {
		p.rails, err = rails.Read(n, h)
	}
	return p.rails, err
}

// agrees returns an error if the network selects the NIC found, but the device ID in s names
// another NIC. In that case neither NIC is lent, because the pod has been allocated one NIC and the
// network is for the other NIC.
func (p *Part) agrees(host *nic.Host, s nic.Selector, found *nic.NIC) error {
	if id := s.PCI + s.Aux; id != "" && !static(p.Conf).IsZero() && host.IsNIC(id) && !host.Is(found, id) {
		return failure.New(failure.InvalidConfig, "the network selects %s by %s, and the device id is another NIC, %s", nameOf(found), s, id).
			Cure(`remove that key to lend the NIC that the pod was allocated, or remove the device id, which is in "pciBusID", "deviceID" or the NAD's annotation k8s.v1.cni.cncf.io/resourceName`)
	}
	return nil
}

// railOf returns the rail of the NIC, or nil if the network does not need the rail. It returns an
// error if the NIC has no rail, or another rail than the network's.
func (p *Part) railOf(n *attachment.Node, host *nic.Host, found *nic.NIC) (*int, error) {
	if !p.Conf.NeedsRail() {
		return nil, nil
	}
	rails, err := p.railsOf(n, host)
	if err != nil {
		return nil, p.Conf.RailCure(err)
	}
	rail, err := rails.RailOf(found, p.Conf.Rail)
	return &rail, p.Conf.RailCure(err)
}

// nameOf returns the NIC's name and PCI address, or only one of them if the NIC lacks the other.
func nameOf(n *nic.NIC) string {
	switch {
	case n.Link == nil:
		return n.PCI
	case n.PCI == "":
		return n.Link.Name
	}
	return fmt.Sprintf("%s (%s)", n.Link.Name, n.PCI)
}

// Holder returns the record of the attachment that has the NIC, or nil. If the netns of that
// attachment is gone, the NIC is already on the host, under any name, or is on its way there.
func (p *Part) Holder(tx *attachment.Tx) (*ledger.Record, error) {
	host := tx.Node.Host()
	p.selected, p.chosen = nic.Selector{}, nil
	s, err := p.selector(tx.Node, host)
	if err != nil {
		return nil, nil //nolint:nilerr // Claim reports the error
	}
	p.selected = s
	switch found, err := host.Select(s); {
	case err == nil:
		holder, err := holderOf(tx.Node, found)
		if holder == nil && err == nil {
			p.chosen = found
		}
		return holder, err
	case errors.Is(err, nic.ErrNotFound):
		holder, _ := tx.Node.HolderOf(s) // Claim reports unreadable records together with ErrNotFound
		return holder, nil
	}
	return nil, nil
}

// holderOf returns the record of the attachment that has the NIC, or nil. Some functions can be
// found only by their PCI address: those that had a netdev, or another permanent MAC, when they
// were lent.
func holderOf(n *attachment.Node, found *nic.NIC) (*ledger.Record, error) {
	holder, err := n.Ledger.HolderOf(found.Key(n.Netns.ID))
	if holder != nil || err != nil || !found.RDMAAlone && !n.Host().HasOneNIC(found.PCI) {
		return holder, err // found without reading every record
	}
	holder, err = n.HolderOf(nic.Selector{PCI: found.PCI})
	if holder != nil && !found.RDMAAlone && !holder.Loan.Identity.AnyMAC {
		return nil, nil
	}
	return holder, err
}

// Claim chooses the NIC, makes sure that no other attachment has the NIC and that the host can
// spare it, and records the state of the NIC. Claim can use the NIC that Holder selected, because
// the NIC is read again under its lock.
func (p *Part) Claim(ctx context.Context, tx *attachment.Tx) error {
	n, host := tx.Node, tx.Node.Host()
	s, found, err := p.choose(ctx, n, host)
	if err != nil {
		return err
	}
	if err := p.agrees(host, s, found); err != nil {
		return err
	}
	rail, err := p.railOf(n, host, found)
	if err != nil {
		return err
	}
	if err := host.Permit(found, n.File, p.Conf.Allow); err != nil {
		return err
	}
	key := found.Key(n.Netns.ID) // with any driver
	if p.Conf.DPDKMode && found.Link != nil {
		found = &nic.NIC{PCI: found.PCI, Driver: "DPDKMode"}
	}
	if err := p.checkNoNetdev(found, s); err != nil {
		return err
	}
	lock, err := n.Ledger.LockNIC(ctx, key)
	if err != nil {
		return err
	}
	tx.UntilRecorded(func() { _ = lock.UnlockAndRemove() })
	if holder, err := holderOf(n, found); err != nil || holder != nil && holder.Key != tx.Key {
		if err == nil {
			err = ledger.LentTo(holder)
		}
		return err
	}
	lent := &ledger.Loan{NIC: key, PCI: found.PCI, Driver: found.Driver, RDMAAlone: found.RDMAAlone}
	if found.Link != nil {
		if err := p.snapshot(tx, found.Link, lent); err != nil {
			return nic.IfGone(err, found.Link.Name)
		}
	}
	tx.Record.Loan = lent
	if rail != nil {
		p.rails.SetRail(tx, *rail)
	}
	return nil
}

// checkNoNetdev checks a NIC without a netdev. It returns an error if the configuration needs a
// netdev, or if the configuration leaves nothing to lend. s is the selector of the NIC.
func (p *Part) checkNoNetdev(found *nic.NIC, s nic.Selector) error {
	if found.Link != nil {
		return nil
	}
	if !found.RDMAAlone {
		if key := p.carries(); key != "" {
			return failure.New(failure.InvalidConfig, `"%s" needs a netdev, but a userspace driver holds %s`, key, s).Cure("give addresses by IPAM")
		}
		return nil
	}
	alone := func(key string) error {
		return failure.New(failure.InvalidConfig, `"%s" needs an interface, but %s has only an RDMA device`, key, s).
			Cure(`remove "%s", or load the driver that makes the interface (ib_ipoib for InfiniBand)`, key)
	}
	switch key := p.carries(); {
	case key != "":
		return alone(key)
	case p.Conf.IPAM.Type != "":
		return alone("ipam")
	case p.Conf.RDMA.RDMA == netconf.RDMAOff:
		return failure.New(failure.InvalidConfig, `%s has only an RDMA device, and "rdma" is "off": there is nothing to lend`, s).Cure(`remove "rdma"`)
	}
	return nil
}

// choose returns the selector, and the NIC that the selector selects, once udev has named the NIC.
func (p *Part) choose(ctx context.Context, n *attachment.Node, host *nic.Host) (s nic.Selector, found *nic.NIC, err error) {
	s, found = p.selected, p.chosen
	if s.IsZero() {
		if s, err = p.selector(n, host); err != nil {
			return s, nil, err
		}
	}
	if found == nil {
		if found, err = host.Select(s); err != nil {
			return s, nil, notFound(n, s, err)
		}
	}
	if found.Link == nil {
		return s, found, nil
	}
	waited, err := host.AwaitUdev(ctx, found.Link)
	if waited && err == nil {
		if found, err = host.Select(s); err != nil {
			err = notFound(n, s, err)
		}
	}
	return s, found, err
}

// notFound returns the error for a selector that selects no NIC on the host. The NIC may be lent,
// and then the error names the attachment that has the NIC.
func notFound(n *attachment.Node, s nic.Selector, err error) error {
	if !errors.Is(err, nic.ErrNotFound) {
		return err
	}
	holder, holderErr := n.HolderOf(s)
	if holder != nil && holderErr == nil {
		return ledger.LentTo(holder)
	}
	return errors.Join(failure.From(err, failure.NICNotFound, "").Cure("see `ip link` for the NICs on the host, and `railctl show` for the NICs that are lent"), holderErr)
}

// snapshot records the state of the NIC.
func (p *Part) snapshot(tx *attachment.Tx, chosen *link.Link, lent *ledger.Loan) error {
	host := tx.Node.Host()
	// Read the NIC again under the lock: it may have been lent and returned meanwhile.
	v, err := link.ReadView(host.Netns, chosen.Index)
	if err != nil {
		return err
	}
	l := v.Link
	if l.Name != chosen.Name {
		return failure.New(failure.TryAgain, "the NIC %s was renamed to %s while it was being chosen", chosen.Name, l.Name)
	}
	if (&nic.NIC{Link: l}).Key(tx.Node.Netns.ID) != lent.NIC {
		return failure.New(failure.TryAgain, "another NIC has taken the name %s while the NIC was being chosen", l.Name)
	}
	if err := nic.GuardGUID(l.Name, l.IsIPoIB() && !p.NewGUID, l.PortGUID()); err != nil {
		return err
	}
	if err := host.Guard(v, p.Conf.Allow); err != nil {
		return err
	}
	if err := tx.NameFree(l.AltNames...); err != nil {
		return err
	}
	tx.Parent = l
	lent.Name, lent.Identity = l.Name, l.Identity()
	if below := nic.LiesOn(l); below != 0 {
		lower := v.ByIndex(below)
		if lower == nil {
			return failure.New(failure.TryAgain, "the link with index %d, on which the NIC %s lies, left while the NIC was being chosen", below, l.Name)
		}
		lent.LiesOn = lower.Name
	}
	if lent.Above, err = above(tx, l.Index); err != nil {
		return err
	}
	if h, err := device.ReadHardware(host.Netns, l.Name); err == nil && h != (device.Hardware{}) {
		lent.Hardware = &h // for railctl and device plugins; a driver that does not report it must not prevent the loan
	}
	if lent.Snapshot, err = nicstate.Take(host.Netns, v); err == nil {
		joinHops(tx, lent.Snapshot)
	}
	if err == nil && p.Conf.KeepAddress && len(lent.Snapshot.Carried().Addresses) == 0 {
		return failure.New(failure.InvalidConfig, `"keepAddress" is set, but %s has no address of global scope on the host`, l.Name).
			Cure("give the NIC an address on the host, or remove \"keepAddress\" and have \"ipam\" assign an address")
	}
	if err == nil && slices.Contains(p.Conf.Allow, netconf.AllowBPF) {
		lent.Snapshot.Programs, err = bpf.Programs(host.Netns, l)
	}
	if err == nil && slices.Contains(p.Conf.Allow, netconf.AllowVFs) {
		lent.Snapshot.Functions, err = sriov.Functions(host.Netns, l.Index)
	}
	return err
}

// nicsLent returns the records of the NICs that are lent from this host netns, each with its
// snapshot, and an error for each record that cannot be read.
func nicsLent(n *attachment.Node) ([]*ledger.Record, []error) {
	return n.Ledger.Held(n.Netns.ID, func(r *ledger.Record) bool { return r.LendsNetdev() && r.Loan.Snapshot != nil })
}

// joinHops completes the multipath routes of the snapshot. It adds their nexthops over other NICs
// that are lent: those nexthops left the host's routes when their NICs left.
func joinHops(tx *attachment.Tx, s *nicstate.Snapshot) {
	records, errs := nicsLent(tx.Node)
	for _, r := range records {
		s.JoinHops(r.Loan.Snapshot, r.Phase == ledger.Lending)
	}
	for _, err := range errs {
		tx.Node.Log.Warn("cannot read a record, which may be that of another NIC in this NIC's multipath routes", "nic", s.Name, "err", err)
	}
}

// Confirm makes two checks of the other records. It reads the records only once for both checks,
// because a node may have hundreds.
//
// First, Confirm returns an error if another attachment has the same NIC under another key. That
// can happen if one attachment was lent only the RDMA device and the other was lent the netdev too,
// or if a virtual function has got another permanent MAC.
//
// Second, Confirm applies the guardrail "children" to links of pods. A macvlan, an IPoIB child or a
// VLAN in another netns is not visible on the host, but the ledger has it. An ADD that makes such a
// link first writes its record and then looks for a loan of the NIC. So if two ADDs run at the same
// time, at least one of them sees the record of the other.
func (p *Part) Confirm(tx *attachment.Tx) error {
	lent := tx.Record.Loan
	sameNIC := func(r *ledger.Record) bool {
		return r.Key != tx.Key && r.Loan != nil && lent.PCI != "" && r.Loan.PCI == lent.PCI && (r.Loan.RDMAAlone || lent.RDMAAlone || r.Loan.Identity.AnyMAC || lent.Identity.AnyMAC)
	}
	kindOn := func(r *ledger.Record) string { // of the link on the NIC
		switch {
		case lent.Driver != "":
		case r.Child != nil && !r.Child.InPod && (r.Child.Master == lent.Name || r.Child.MasterIndex == lent.Identity.Index):
			return r.Child.LinkKind()
		case r.Loan != nil && r.Loan.LiesOn == lent.Name:
			return r.Loan.Identity.Kind
		}
		return ""
	}
	records, errs := tx.Node.Ledger.Held(tx.Node.Netns.ID, func(r *ledger.Record) bool { return sameNIC(r) || kindOn(r) != "" })
	for _, r := range records {
		if sameNIC(r) {
			return ledger.LentTo(r)
		}
		if !tx.Node.Alive(r) {
			continue
		}
		if err := nic.GuardPodLink(lent.Name, kindOn(r), r.Holder(), p.Conf.Allow); err != nil {
			return err
		}
	}
	for _, err := range errs {
		tx.Node.Log.Warn("cannot read a record, which may be that of the same NIC or of a link on it", "nic", tx.Record.NICName(), "err", err)
	}
	return nil
}

// Apply moves the NIC into the pod netns, gives the NIC its name there, and configures what must be
// right before the NIC is up. The alias is the NIC's name on the host, as it is with upstream's
// plugin, so that each plugin can end the attachments of the other.
func (p *Part) Apply(ctx context.Context, tx *attachment.Tx) error {
	lent := tx.Record.Loan
	if lent.Driver != "" {
		return nil
	}
	host := tx.Node.Netns
	err := p.move(ctx, tx)
	if err != nil {
		return err
	}
	if err := nicstate.KeepOtherHops(host, lent.Snapshot); err != nil {
		tx.Node.Log.Warn("host lacks routes as long as the NIC is lent", "nic", lent.Name, "err", err)
	}
	lent.PodIndex = tx.Link.Index
	if err := tx.Step("mtu"); err != nil {
		return err
	}
	if p.Conf.MTU != 0 && p.Conf.MTU != tx.Link.MTU {
		if err := link.SetMTU(tx.Pod, tx.Link.Index, p.Conf.MTU); err != nil {
			return failure.From(err, failure.InvalidConfig, "%s does not accept MTU %d", lent.Name, p.Conf.MTU).
				Cure("see `ip -d link show %s` for its limits (maxmtu)", lent.Name)
		}
		// Some drivers set a smaller MTU (ipoib_change_mtu).
		if tx.Link, err = link.ByIndex(tx.Pod, tx.Link.Index); err != nil {
			return err
		}
	}
	if err := p.setMAC(tx); err != nil {
		return err
	}
	if virtual := lent.Snapshot.Virtual(); p.carries() != "" && len(virtual) > 0 {
		tx.Node.Log.Warn("pod does not get the VRRP addresses of the NIC: another host may take them", "nic", lent.Name, "addresses", virtual)
	}
	switch {
	case p.Conf.UseInterfaceNetwork:
		return carry(tx)
	case p.Conf.KeepAddress:
		keepAddress(tx)
	}
	return nil
}

// setMAC sets the MAC of the network, if the network has one. The interface must be down.
func (p *Part) setMAC(tx *attachment.Tx) error {
	if p.MAC == nil || bytes.Equal(tx.Link.MAC, p.MAC) {
		return nil
	}
	err := link.SetMAC(tx.Pod, tx.Link.Index, p.MAC)
	if err != nil {
		return failure.From(err, failure.NotAvailable, "%s does not accept the MAC %s", tx.Record.Loan.Name, p.MAC).Cure(`remove "mac", or see the kernel log for the driver's reason`)
	}
	if tx.Link, err = link.ByIndex(tx.Pod, tx.Link.Index); err == nil && !bytes.Equal(tx.Link.MAC, p.MAC) {
		err = failure.New(failure.NotAvailable, "%s has the MAC %s, although its MAC was set to %s", tx.Record.Loan.Name, tx.Link.MAC, p.MAC).Cure(`remove "mac", or see the kernel log for the driver's reason`)
	}
	return err
}

// move moves the NIC into the pod netns, gives the NIC its name there, and sets tx.Link.
func (p *Part) move(ctx context.Context, tx *attachment.Tx) error {
	lent := tx.Record.Loan
	l, from, err := p.toMove(ctx, tx)
	if err != nil {
		return err
	}
	if from != tx.Node.Netns {
		defer from.Close()
	}
	// The kernel refuses the new name even if it is an altname of the link itself. So the altname
	// is removed; Restore adds it again.
	if err := link.KeepAltNames(from, l, slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return name == tx.IfName })); err != nil {
		return failure.Wrap(err, failure.Kernel, "lend %s without its altname %s", lent.Name, tx.IfName)
	}
	began := time.Now()
	err = link.Move(from, l.Index, tx.Pod, tx.IfName, lent.Name)
	tx.NoteMove(time.Since(began))
	if err != nil {
		return failure.From(err, failure.Kernel, "lend %s", lent.Name).Cure("see the kernel log for the driver's reason")
	}
	tx.Link, err = link.ByName(tx.Pod, tx.IfName)
	return err
}

// toMove returns the link that Claim has chosen, after detaching the host's BPF programs from it.
// It also returns the netns of the link. The caller closes that netns if it is not the host netns.
func (p *Part) toMove(ctx context.Context, tx *attachment.Tx) (*link.Link, *netns.Netns, error) {
	if tx.Record.MadeAnew() {
		return renewed(ctx, tx)
	}
	host, lent := tx.Node.Netns, tx.Record.Loan
	l, err := link.ByName(host, lent.Name)
	if err != nil {
		return nil, nil, err
	}
	if !lent.Identity.Is(l) {
		return nil, nil, failure.New(failure.TryAgain, "another NIC has taken the name %s in the meantime", lent.Name)
	}
	if err := bpf.Detach(host, l.Index, lent.Snapshot.Programs); err != nil {
		return nil, nil, failure.Wrap(err, failure.Kernel, "lend %s without the host's BPF programs", lent.Name)
	}
	return l, host, nil
}

// carries returns the key of the configuration that makes the NIC keep its addresses from the host,
// or "" if the configuration has no such key.
func (p *Part) carries() string {
	switch {
	case p.Conf.UseInterfaceNetwork:
		return "useInterfaceNetwork"
	case p.Conf.KeepAddress:
		return "keepAddress"
	}
	return ""
}

// keepAddress adds the addresses that the NIC had on the host to the interface. If a subnet has
// only two addresses, the other address is the gateway: that of the switch port (RFC 3021, RFC
// 6164).
func keepAddress(tx *attachment.Tx) {
	c := tx.Record.Loan.Snapshot.Carried().Alone()
	tx.Layer3.Carried, tx.Layer3.CarriedPeers = c.Snapshot, c.Peers
	for _, ip := range c.Addresses {
		tx.Layer3.CarriedIPs = append(tx.Layer3.CarriedIPs, &current.IPConfig{Address: *ip, Gateway: peerOf(ip)})
	}
}

// peerOf returns the other address of a /31 or /127, or nil for a subnet of another length.
func peerOf(ip *net.IPNet) net.IP {
	if ones, bits := ip.Mask.Size(); bits-ones != 1 {
		return nil
	}
	peer := slices.Clone(ip.IP)
	peer[len(peer)-1] ^= 1
	return peer
}

// carry adds the addresses that the NIC had on the host to the interface, together with their
// routes and rules.
func carry(tx *attachment.Tx) error {
	c := tx.Record.Loan.Snapshot.Carried()
	rules, err := link.Rules(tx.Node.Netns, c.Addresses, c.Tables)
	if err != nil {
		return err
	}
	l3 := &tx.Layer3
	l3.Carried, l3.CarriedRules, l3.CarriedPeers = c.Snapshot, rules, c.Peers
	for _, ip := range c.Addresses {
		l3.CarriedIPs = append(l3.CarriedIPs, &current.IPConfig{Address: *ip})
	}
	for _, r := range c.Routes {
		l3.CarriedRoutes = append(l3.CarriedRoutes, address.CNIRoute(r))
	}
	return nil
}

// Check returns an error if the interface is not the NIC that was lent.
func (*Part) Check(_ context.Context, c *attachment.Checking) error {
	r := c.Record
	if r != nil && r.Loan != nil && r.Loan.Driver != "" {
		c.Link = nil // there is no netdev
		return nil
	}
	switch {
	case c.Link == nil:
		return attachment.Mismatch("interface %s is not in netns %s", c.IfName, c.Netns)
	case r != nil && r.Loan != nil && (c.Link.ParentDev != r.Loan.Identity.ParentDev || c.Link.Kind != r.Loan.Identity.Kind):
		return attachment.Mismatch("interface %s is not the NIC %s that was lent", c.IfName, r.Loan.Name)
	}
	return checkPartition(c)
}

// checkPartition returns an error if the InfiniBand interface is in another partition than it was
// on the host. The partition can change, because the kernel follows the port's table of partition
// keys, which the subnet manager sets.
func checkPartition(c *attachment.Checking) error {
	if c.Record == nil || c.Record.Loan == nil || c.Record.Loan.Snapshot == nil || c.Record.Rebinds() { // with a GUID, a port gets other partitions
		return nil
	}
	was, now := c.Record.Loan.Snapshot.IPoIB, c.Link.IPoIB
	if was == nil || now == nil || was.PKey == now.PKey {
		return nil
	}
	return attachment.Mismatch("interface %s is in the partition %#04x, but %s was in %#04x when it was lent", c.IfName, now.PKey, c.Record.Loan.Name, was.PKey)
}

// Available returns the reason why the configured NIC cannot be lent, or nil. A NIC that is lent to
// a pod now counts as available. Available returns nil if the runtime names the NIC for each pod.
func (p *Part) Available(n *attachment.Node) error {
	host := n.Host()
	s, err := p.selector(n, host)
	if err != nil {
		if len(p.Conf.IDs()) == 0 && p.Conf.Rail.Number == nil {
			return nil
		}
		return err
	}
	found, err := host.Select(s)
	if err == nil {
		if err := p.agrees(host, s, found); err != nil {
			return err
		}
		if _, err := p.railOf(n, host, found); err != nil {
			return err
		}
		return host.Permit(found, n.File, p.Conf.Allow)
	}
	if holder, _ := n.HolderOf(s); holder != nil {
		return nil
	}
	return err
}
