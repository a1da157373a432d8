package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// Provision is what a plugin gives a pod, and how.
type Provision interface {
	// Claim decides what to give and writes it into the record, under the
	// locks that it needs, and lets commit write the record before it gives
	// those locks back. It changes nothing of the host.
	Claim(ctx context.Context, a *Adding, commit func() error) error
	// Give puts the interface, down and without addresses, into the pod netns
	// as a.IfName. What it gave is taken back by the record alone.
	Give(ctx context.Context, a *Adding) error
	// Configure does what the configuration asks beyond IPAM: MTU, addresses
	// carried along. The interface is still down.
	Configure(a *Adding, l *link.Link, l3 *layer3) error
	// Finish waits for what follows from the addresses. The interface is up.
	Finish(ctx context.Context, a *Adding, l3 *layer3) error
	// TakeBackUnrecorded takes back the interface c.IfName of the pod where
	// there is no record, if it can tell that it is one of this plugin's. pod
	// is nil when the pod netns is gone.
	TakeBackUnrecorded(ctx context.Context, n *Node, c *Call, pod *link.Netns) error
	// Available says why an ADD could not work now, or nil.
	Available(n *Node) error
}

// Adding is an ADD at work.
type Adding struct {
	*Call
	Node   *Node
	Pod    *link.Netns
	Record *ledger.Record

	committed bool // a record may have been written
	answers   bool // the interface is in the pod still, perhaps with its addresses
	back      undo
}

// Add makes an attachment and gives its result in the configuration's
// version. When it fails nothing is left of it, on the host or in the pod.
func (n *Node) Add(ctx context.Context, c *Call, p Provision) (types.Result, error) {
	if err := netconf.CheckEnv(c.ContainerID, c.IfName, c.Netns, c.Args, c.Path); err != nil {
		return nil, err
	}
	pod, err := link.OpenNetns(c.Netns)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	if pod.ID.Equal(n.Host.Netns.ID) {
		return nil, cnierr.New(cnierr.InvalidNetns, "", "CNI_NETNS %s is the plugin's own netns: a NIC cannot be lent to the host itself", c.Netns)
	}
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.Sweep(ctx, c.Key)
	if err := n.settleOld(ctx, c, pod); err != nil {
		return nil, err
	}
	record, err := c.newRecord(pod, n.hostNetns())
	if err != nil {
		return nil, err
	}
	a := &Adding{Call: c, Node: n, Pod: pod, Record: record}
	result, err := a.run(ctx, p)
	if err != nil {
		return nil, failed(err, a.abandon())
	}
	return result, nil
}

// abandon takes back what the ADD has done. The record goes last, and stays if
// anything else could not be taken back.
func (a *Adding) abandon() error {
	if !a.committed {
		return nil
	}
	if err := a.back.run(); err != nil {
		a.Record.Phase = ledger.Returning
		return errors.Join(err, a.Node.Ledger.Put(a.Record))
	}
	return a.Node.Ledger.Remove(a.Record)
}

// settleOld deals with a record that exists for the same attachment: one of a
// pod netns that is gone or was replaced is ended, a live one refuses the ADD.
func (n *Node) settleOld(ctx context.Context, c *Call, pod *link.Netns) error {
	old, err := n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		return nil
	case cnierr.Code(err) == cnierr.BadRecord && old == nil && !ledger.IsNewer(err):
		n.Log.Warn("a corrupt record was moved aside", "err", err)
		return nil
	case err != nil:
		return err
	}
	if old.Netns.Equal(pod.ID) && n.Ledger.OfThisBoot(old) && old.Phase == ledger.Lent && !old.OnlyRDMA() {
		return cnierr.New(cnierr.NameTaken, "end it with DEL first", "%s is attached already, since %s, with %s",
			c.Key, old.Created.Format(time.RFC3339), old.NICName())
	}
	return n.settleFirst(ctx, old)
}

// settleFirst ends an attachment whose name another is to get: one record keeps
// one attachment's addresses.
func (n *Node) settleFirst(ctx context.Context, old *ledger.Record) error {
	err := n.settle(ctx, old, homeWait)
	if err == nil {
		if _, kept := n.Ledger.Get(old.Key); kept == nil {
			err = cnierr.New(cnierr.TryAgain, "install it again", "the IPAM plugin that is to free its addresses is not in CNI_PATH")
		}
	}
	if err != nil {
		return fmt.Errorf("an earlier attachment of %s must end first: %w", old.Key, err)
	}
	return nil
}

func (c *Call) newRecord(pod *link.Netns, host ledger.Netns) (*ledger.Record, error) {
	args := netconf.ParseArgs(c.Args)
	r := &ledger.Record{
		Key: c.Key, Network: c.Conf.Name, Plugin: c.Conf.Type, Phase: ledger.Lending,
		Created: time.Now().UTC(), Netns: ledger.Netns{NetnsID: pod.ID, Path: c.Netns}, HostNetns: host,
	}
	var err error
	if r.DeviceInfo, err = planDeviceInfo(c.Conf.RuntimeConfig.CNIDeviceInfoFile); err != nil {
		return nil, err
	}
	if args.PodName != "" {
		r.Pod = &ledger.Pod{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID}
	}
	if c.Conf.IPAM.Type != "" {
		config, err := c.Conf.Kept()
		if err != nil {
			return nil, err
		}
		r.IPAM = &ledger.IPAM{Type: c.Conf.IPAM.Type, Path: c.Path, Args: c.Args, Config: config}
	}
	return r, nil
}

// run is the transaction. Every step that changes something pushes its undo
// before it begins, because it may fail halfway.
func (a *Adding) run(ctx context.Context, p Provision) (types.Result, error) {
	n, r, step := a.Node, a.Record, a.Node.step
	if err := errors.Join(step("name"), a.nameFree(a.IfName)); err != nil {
		return nil, err
	}
	commit := func() error {
		a.committed = true
		return errors.Join(step("record"), n.Ledger.Put(r))
	}
	if err := errors.Join(step("claim"), p.Claim(ctx, a, commit)); err != nil {
		return nil, err
	}
	l3 := &layer3{dns: a.Conf.DNS}
	if r.IPAM != nil {
		if err := errors.Join(step("ipam"), a.ipamAdd(ctx, l3)); err != nil {
			return nil, err
		}
	}
	a.back.push(func() error {
		silent := false
		err := n.takeBack(ctx, r, homeWait, func() { silent = true })
		a.answers = !silent && n.mayAnswer(r, err)
		return err
	})
	if err := step("give"); err != nil {
		return nil, err
	}
	if err := p.Give(ctx, a); err != nil {
		return nil, err
	}
	if err := errors.Join(step("configure"), a.configure(ctx, p, l3, step)); err != nil {
		return nil, err
	}
	result, err := a.result(l3)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(step("deviceinfo"), a.writeDeviceInfo()); err != nil {
		return nil, err
	}
	r.Phase = ledger.Lent
	if err := errors.Join(step("close"), n.Ledger.Put(r)); err != nil {
		return nil, err
	}
	return result, nil
}

// nameFree fails if a link of the pod has the name already, or has it as an
// altname. The kernel would notice too late, with the link in the pod.
func (a *Adding) nameFree(names ...string) error {
	taken, name, err := a.Pod.NameTaken(names, 0)
	if err != nil || taken == nil {
		return err
	}
	return cnierr.New(cnierr.NameTaken, "remove that interface, or attach the network under another name",
		"the pod netns %s has an interface %q already (%s)", a.Pod.Path, name, describe(taken))
}

func describe(l *link.Link) string {
	kind := l.Kind
	if kind == "" || kind == "device" {
		kind = "device"
	}
	return fmt.Sprintf("%s %s, index %d", kind, l.Name, l.Index)
}

// configure does everything to the interface in the pod, in the order that
// makes it right from its first packet: settings and addresses, then up, then
// routes.
func (a *Adding) configure(ctx context.Context, p Provision, l3 *layer3, step func(string) error) error {
	if a.Record.Loan != nil && a.Record.Loan.Driver != "" {
		return nil // a userspace driver holds the NIC: nothing to configure
	}
	l, err := a.Pod.ByName(a.IfName)
	if err != nil {
		return err
	}
	if err := errors.Join(step("mtu"), p.Configure(a, l, l3)); err != nil {
		return err
	}
	// Before up: the neighbours must learn of a new holder of the address.
	settings := map[string]string{"ipv4/conf/arp_notify": "1", "ipv6/conf/ndisc_notify": "1"}
	if l3.hasIPv6() {
		settings["ipv6/conf/disable_ipv6"] = "0"
	}
	if err := errors.Join(step("sysctl"), a.Pod.SetSysctls(a.IfName, settings)); err != nil {
		return err
	}
	if err := step("address"); err != nil {
		return err
	}
	for _, ip := range l3.ips {
		if err := a.Pod.AddAddress(l.Index, &ip.Address); err != nil {
			return cnierr.Wrap(err, cnierr.Kernel, "see what else uses the address in the pod", "interface %s", a.IfName)
		}
	}
	if err := errors.Join(step("up"), a.Pod.SetUp(l.Index)); err != nil {
		return cnierr.Wrap(err, cnierr.Kernel, "see the kernel log for the driver's reason", "set %s up", a.IfName)
	}
	if err := step("route"); err != nil {
		return err
	}
	if l3.carried != nil {
		// A carried IPv6 route may name a source, which must not be tentative.
		if err := a.awaitDAD(ctx, l3, l.Index); err != nil {
			return err
		}
	}
	if err := l3.addRoutes(a.Pod, l.Index); err != nil {
		return cnierr.Wrap(err, cnierr.Kernel, "check the routes and gateways of the network", "interface %s", a.IfName)
	}
	if err := errors.Join(step("dad"), a.awaitDAD(ctx, l3, l.Index)); err != nil {
		return err
	}
	if err := errors.Join(step("gid"), p.Finish(ctx, a, l3)); err != nil {
		return err
	}
	return a.note(l.Index)
}

func (a *Adding) awaitDAD(ctx context.Context, l3 *layer3, index int) error {
	if !l3.hasIPv6() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dadWait)
	defer cancel()
	return cnierr.Wrap(a.Pod.AwaitDAD(ctx, index), cnierr.Kernel,
		"find the other holder of the address, or exclude it from the range", "interface %s", a.IfName)
}

// note writes what the interface has become into the record.
func (a *Adding) note(index int) error {
	l, err := a.Pod.ByIndex(index)
	if err != nil {
		return err
	}
	a.Record.MAC, a.Record.MTU = l.MAC.String(), l.MTU
	if a.Record.Loan != nil {
		a.Record.Loan.PodIndex = l.Index
	}
	return nil
}
