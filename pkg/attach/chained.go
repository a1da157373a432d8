package attach

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Chained is the plugin rdma. It stands in a chain behind the plugin that gave
// the pod its interface, and gives the pod the RDMA devices of the interface's
// NIC: it moves them in exclusive mode, and in shared mode waits for the GIDs.
//
// It makes no interface, so it is not a [Provision]. What it does is recorded
// under the attachment's key: in the record of the plugin before it when that is
// one of ours, else in a record of its own, which has neither loan nor child.
type Chained struct {
	Conf *netconf.RDMAChained
	// Peer is the directory in which rdma-cni left records, [PeerRecords] but
	// for tests.
	Peer string
}

// ChainedMain runs the plugin rdma as [Plugin.Main] runs the others.
func ChainedMain(build string) {
	ctx := context.Background()
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: chainedVerb(asks, func(n *Node, c *Call, p Chained) error {
			result, err := n.AddChained(ctx, c, p)
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(append(result, '\n'))
			return err
		}),
		Check:  chainedVerb(ends, func(n *Node, c *Call, p Chained) error { return n.CheckChained(c, p) }),
		GC:     chainedVerb(ends, func(n *Node, c *Call, _ Chained) error { return n.GC(ctx, c) }),
		Status: chainedVerb(asks, func(n *Node, c *Call, p Chained) error { return n.StatusChained(c, p) }),
		Del:    delChained,
	}, version.All, "CNI plugin rdma (rail-cni) "+build)
}

func chainedVerb(w want, f func(*Node, *Call, Chained) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := netconf.ParseRDMAChained(args.StdinData)
		if err != nil {
			return cnierr.ToCNI(err)
		}
		return run(args, &conf.Common, w, func(n *Node, c *Call) error {
			return f(n, c, Chained{Conf: conf, Peer: PeerRecords})
		})
	}
}

// delChained goes on with what can be read of a configuration with mistakes.
func delChained(args *skel.CmdArgs) error {
	conf, err := netconf.ParseRDMAChained(args.StdinData)
	if err != nil {
		conf = &netconf.RDMAChained{Common: *netconf.Lenient(args.StdinData)}
	}
	return run(args, &conf.Common, ends, func(n *Node, c *Call) error {
		return n.DelChained(context.Background(), c, Chained{Conf: conf, Peer: PeerRecords})
	})
}

// AddChained gives the pod the RDMA devices of the NIC behind its interface, and
// returns what to print: prevResult, unchanged. When it fails, the devices are
// where they were, and nothing of it is recorded.
func (n *Node) AddChained(ctx context.Context, c *Call, p Chained) ([]byte, error) {
	if err := p.Conf.NeedPrevResult(); err != nil {
		return nil, err
	}
	if err := netconf.CheckEnv(c.ContainerID, c.IfName, c.Netns, c.Args, c.Path); err != nil {
		return nil, err
	}
	l3, err := c.prevLayer3()
	if err != nil {
		return nil, err
	}
	result, err := c.unchanged()
	if err != nil || p.Conf.RDMA.RDMA == netconf.RDMAOff {
		return result, err
	}
	pod, err := link.OpenNetns(c.Netns)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	if pod.ID.Equal(n.Host.Netns.ID) {
		return nil, cnierr.New(cnierr.InvalidNetns, "", "CNI_NETNS %s is the plugin's own netns: there is nothing to give to the host itself", c.Netns)
	}
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.Sweep(ctx, c.Key)
	record, err := n.chainedRecord(ctx, c, pod)
	if err != nil || record.RDMA != nil {
		return result, err
	}
	a := &Adding{Call: c, Node: n, Pod: pod, Record: record}
	if err := a.runChained(ctx, p, l3); err != nil {
		return nil, failed(err, a.abandonRDMA(ctx))
	}
	return result, nil
}

// chainedRecord gives the record that the RDMA devices are to go into: that of
// the attachment if a plugin of ours made the interface, else a new one. If it
// has them already, they are where they should be, and nothing is to be done.
func (n *Node) chainedRecord(ctx context.Context, c *Call, pod *link.Netns) (*ledger.Record, error) {
	old, err := n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		return c.newChainedRecord(pod, n.hostNetns())
	case cnierr.Code(err) == cnierr.BadRecord && old == nil && !ledger.IsNewer(err):
		n.Log.Warn("a corrupt record was moved aside", "err", err)
		return c.newChainedRecord(pod, n.hostNetns())
	case err != nil:
		return nil, err
	}
	switch {
	case !old.Netns.Equal(pod.ID), !n.Ledger.OfThisBoot(old), old.Phase == ledger.Freeing, old.OnlyRDMA() && old.Phase != ledger.Lent:
		// Of an earlier life of the same name, or of an ADD that was killed.
	case old.Phase != ledger.Lent:
		return nil, cnierr.New(cnierr.TryAgain, "end it with DEL first", "the attachment %s is not complete (%s)", c.Key, old.Phase)
	case old.RDMA == nil || n.inPlace(old.RDMA, pod):
		return old, nil
	case !old.OnlyRDMA():
		return old, n.clearRDMA(ctx, old)
	}
	if err := n.settleFirst(ctx, old); err != nil {
		return nil, err
	}
	return c.newChainedRecord(pod, n.hostNetns())
}

func (c *Call) newChainedRecord(pod *link.Netns, host ledger.Netns) (*ledger.Record, error) {
	r, err := c.newRecord(pod, host)
	if err != nil {
		return nil, err
	}
	r.DeviceInfo = "" // the affair of the plugin that made the interface
	return r, nil
}

// inPlace says whether the lent RDMA devices are in the pod netns.
func (n *Node) inPlace(r *ledger.RDMA, pod *link.Netns) bool {
	core, err := rdma.Open(pod)
	if err != nil {
		return false
	}
	defer core.Close()
	for _, d := range r.Devices {
		if device, err := one(core, d); d.Lent && (err != nil || device == nil) {
			return false
		}
	}
	return true
}

// runChained is the transaction. In a record of another plugin of ours nothing
// but RDMA changes.
func (a *Adding) runChained(ctx context.Context, p Chained, l3 *layer3) error {
	n, r := a.Node, a.Record
	nic, err := a.behind(p.Conf)
	if err != nil {
		return err
	}
	if err := errors.Join(n.step("claim"), a.claimRDMA(ctx, p.Conf, nic)); err != nil || r.RDMA == nil {
		return err
	}
	if err := n.step("give"); err != nil {
		return err
	}
	if err := a.lendRDMA(ctx); err != nil {
		return err
	}
	if err := errors.Join(n.step("port"), a.notePorts(nic)); err != nil {
		return err
	}
	ns := n.Host.Netns
	if r.RDMA.Mode == string(rdma.Exclusive) {
		ns = a.Pod
	}
	if err := errors.Join(n.step("gid"), a.awaitGIDs(ctx, ns, p.Conf.RDMA, l3)); err != nil {
		return err
	}
	if r.OnlyRDMA() {
		a.noteInterface(nic, l3)
	}
	r.Phase = ledger.Lent
	return errors.Join(n.step("close"), n.Ledger.Put(r))
}

// noteInterface writes into a record of our own what a person looks for in it.
func (a *Adding) noteInterface(nic *behind, l3 *layer3) {
	if l := nic.pod; l != nil {
		a.Record.MAC, a.Record.MTU = l.MAC.String(), l.MTU
	}
	for _, ip := range l3.ips {
		a.Record.Addresses = append(a.Record.Addresses, ip.Address.String())
	}
}

// abandonRDMA takes back what a chained ADD has done.
func (a *Adding) abandonRDMA(ctx context.Context) error {
	if !a.committed {
		return nil
	}
	n, r := a.Node, a.Record
	if err := n.rdmaHome(ctx, r, a.Pod, n.Host.Netns, homeWait); err != nil {
		if r.OnlyRDMA() {
			r.Phase = ledger.Returning
		}
		return errors.Join(err, n.Ledger.Put(r))
	}
	if r.OnlyRDMA() {
		return n.Ledger.Remove(r)
	}
	r.RDMA = nil
	return n.Ledger.Put(r)
}

// DelChained brings the RDMA devices of the attachment home. It comes before the
// DEL of the plugin that made the interface, and does not need the
// configuration, the interface or the pod netns. Where nothing is recorded it
// ends what rdma-cni began.
func (n *Node) DelChained(ctx context.Context, c *Call, p Chained) error {
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := n.Ledger.Get(c.Key)
	byInterface := false
	switch {
	case err == nil && r.OnlyRDMA():
		var believed bool
		if believed, err = n.settleBelieved(ctx, r); !believed && err != nil {
			return err
		}
		byInterface = !believed
	case err == nil && r.RDMA != nil:
		err = n.clearRDMA(ctx, r)
	case err == nil, errors.Is(err, ledger.ErrNoRecord):
		err, byInterface = nil, true
	case cnierr.Code(err) == cnierr.BadRecord && !ledger.IsNewer(err):
		n.Log.Warn("going by the interface itself", "err", err)
		err, byInterface = nil, true
	default:
		return err
	}
	return errors.Join(err, n.takeOver(ctx, c, p, byInterface))
}

// clearRDMA brings the RDMA devices of another plugin's attachment home, and
// takes them out of its record.
func (n *Node) clearRDMA(ctx context.Context, r *ledger.Record) error {
	// In phase Freeing they have come home with the NIC, and may be lent anew.
	if r.Phase != ledger.Freeing && n.Ledger.OfThisBoot(r) {
		pod, err := link.FindNetns(r.Netns.NetnsID, r.Netns.Path)
		if err != nil {
			return err
		}
		defer pod.Close()
		home, done, err := n.homeOf(r)
		if err != nil {
			return err
		}
		defer done()
		if err := n.rdmaHome(ctx, r, pod, home, homeWait); err != nil {
			return err
		}
	}
	r.RDMA = nil
	return n.Ledger.Put(r)
}

// CheckChained compares what the attachment has of RDMA with what ADD found.
func (n *Node) CheckChained(c *Call, p Chained) error {
	if err := p.Conf.NeedPrevResult(); err != nil {
		return err
	}
	if _, err := c.prevResult(); err != nil || p.Conf.RDMA.RDMA == netconf.RDMAOff {
		return err
	}
	pod, err := link.OpenNetns(c.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	r, err := n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		r = nil // made by rdma-cni before the switch-over
	case err != nil:
		return err
	case !r.Netns.Equal(pod.ID):
		return mismatch("%s was attached to netns %s, which %s no longer is", c.Key, r.Netns.NetnsID, c.Netns)
	}
	l, err := pod.ByName(c.IfName)
	switch {
	case errors.Is(err, link.ErrNotFound):
		l = nil // driven from user space
	case err != nil:
		return err
	}
	switch {
	case r != nil && r.RDMA != nil:
		return n.checkRDMA(r, pod, l, p.Conf.RDMA)
	case p.Conf.RDMA.RDMA != netconf.RDMARequired:
		return nil
	}
	return (&Adding{Call: c, Node: n, Pod: pod}).checkUnrecorded(p.Conf)
}

// checkUnrecorded fails unless the pod can see an RDMA device of its NIC.
func (a *Adding) checkUnrecorded(conf *netconf.RDMAChained) error {
	nic, err := a.behind(conf)
	if err != nil {
		return err
	}
	core, err := rdma.Open(a.Pod)
	if err != nil {
		return cnierr.Wrap(err, cnierr.Mismatch, "load the driver again and recreate the pod", "interface %s", a.IfName)
	}
	defer core.Close()
	found, err := core.ByParent(nic.parent)
	if err == nil && len(found) == 0 {
		err = mismatch("no RDMA device of %s is in netns %s", nic, a.Netns)
	}
	return err
}

// StatusChained says whether this node has what ADD needs.
func (n *Node) StatusChained(c *Call, p Chained) error {
	return cnierr.Wrap(n.availableRDMA(p.Conf.RDMA, false), cnierr.NotAvailable, "", "network %q", c.Conf.Name)
}

// unchanged gives prevResult as this plugin's result: the very text, when that
// is in the configuration's version, as it should be.
func (c *Call) unchanged() ([]byte, error) {
	var named struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(c.Conf.PrevResult, &named); err != nil {
		return nil, cnierr.Wrap(err, cnierr.Decode, "", "prevResult")
	}
	switch named.CNIVersion {
	case c.Conf.CNIVersion:
		return c.Conf.PrevResult, nil
	case "":
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(c.Conf.PrevResult, &keys); err != nil {
			return nil, cnierr.Wrap(err, cnierr.Decode, "", "prevResult")
		}
		keys["cniVersion"], _ = json.Marshal(c.Conf.CNIVersion) // a string always marshals
		return json.Marshal(keys)
	}
	result, err := c.prevResult()
	if err != nil {
		return nil, err
	}
	converted, err := result.GetAsVersion(c.Conf.CNIVersion)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.Decode, "", "prevResult")
	}
	return json.Marshal(converted)
}

// prevLayer3 gives the addresses of prevResult that belong to the interface.
func (c *Call) prevLayer3() (*layer3, error) {
	result, err := c.prevResult()
	if err != nil {
		return nil, err
	}
	l3 := &layer3{}
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && (*i < 0 || *i >= len(result.Interfaces) ||
			result.Interfaces[*i].Name != c.IfName || result.Interfaces[*i].Sandbox == "") {
			continue // another interface's
		}
		l3.ips = append(l3.ips, ip)
	}
	return l3, nil
}
