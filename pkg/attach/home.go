package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// settle ends a recorded attachment: the NIC comes home, the addresses are
// freed, the record goes. The caller holds the attachment's lock.
//
// An address is freed only when no interface answers for it any more, but while
// the kernel still works on the move or deletion of one that is down: that is
// most of the time that either takes. As long as the interface cannot be taken
// out of a pod that lives, the address stays with it. An IPAM plugin that is no
// longer installed keeps neither the NIC nor the runtime waiting: the record
// stays in phase Freeing, and every sweep tries again.
func (n *Node) settle(ctx context.Context, r *ledger.Record, wait time.Duration) error {
	if err := n.believe(r); err != nil {
		return err
	}
	log := n.log(r)
	free, freed := make(chan bool, 1), make(chan error, 1)
	go func() {
		var err error
		if <-free {
			err = n.ipamDel(ctx, r)
		}
		freed <- err
	}()
	var once sync.Once
	decide := func(yes bool) { once.Do(func() { free <- yes }) }
	var homeErr error
	// What the record of another boot speaks of is gone, whatever looks like it:
	// nothing is taken back.
	if r.Phase != ledger.Freeing && n.Ledger.OfThisBoot(r) {
		r.Phase = ledger.Returning
		if err := n.Ledger.Put(r); err != nil {
			log.Warn("the record could not be updated; going on", "err", err)
		}
		homeErr = n.takeBack(ctx, r, wait, func() { decide(true) })
	}
	decide(!n.mayAnswer(r, homeErr)) // else whoever ends the attachment later frees
	if err := removeDeviceInfo(r); err != nil {
		log.Warn("the device information file stays", "err", err)
	}
	ipamErr := <-freed
	switch {
	case homeErr != nil:
		return errors.Join(homeErr, ipamErr)
	case errors.Is(ipamErr, errNoPlugin):
		log.Warn("the addresses are still to be freed", "err", ipamErr)
		r.Phase = ledger.Freeing
		return n.Ledger.Put(r)
	case ipamErr != nil:
		r.Phase = ledger.Freeing
		return errors.Join(ipamErr, n.Ledger.Put(r))
	}
	return n.Ledger.Remove(r)
}

// mayAnswer says whether the interface may still answer for its addresses, after
// err came of taking it back.
func (n *Node) mayAnswer(r *ledger.Record, err error) bool {
	return err != nil && (errors.Is(err, errNowhere) || n.alive(r))
}

// Swept is what a sweep did, or would do, with one attachment.
type Swept struct {
	Record *ledger.Record
	Err    error // why it could not be ended; nil if it was
}

// Sweep ends the attachments of this host netns whose pod netns is gone, and
// those whose addresses are still to be freed, but not the one named except.
// It waits for little: what another process works on, and a NIC that is still on
// its way home, is left for the next sweep; an IPAM plugin gets sweepWait; and an
// ADD (except is its own attachment) does not ask again at once an IPAM plugin
// that has just failed.
func (n *Node) Sweep(ctx context.Context, except ledger.Key) []Swept {
	var swept []Swept
	stale, errs := n.Stale()
	for _, err := range errs {
		n.Log.Warn("a record cannot be read", "err", err)
	}
	for _, r := range stale {
		adding := except != ledger.Key{}
		if r.Key == except || adding && r.Phase == ledger.Freeing && time.Since(r.Updated) < freeAgain {
			continue
		}
		err := n.End(ctx, r, 0)
		if errors.Is(err, statefile.ErrBusy) {
			continue
		}
		if err != nil {
			n.log(r).Warn("an attachment without a pod netns could not be ended", "err", err)
		}
		swept = append(swept, Swept{Record: r, Err: err})
	}
	return swept
}

// Stale lists the attachments that a sweep would end.
func (n *Node) Stale() ([]*ledger.Record, []error) {
	records, errs := n.Ledger.List()
	var stale []*ledger.Record
	for _, r := range records {
		if !r.HostNetns.Equal(n.Host.Netns.ID) && n.Ledger.OfThisBoot(r) {
			continue
		}
		if r.Phase == ledger.Freeing || !n.alive(r) {
			stale = append(stale, r)
		}
	}
	return stale, errs
}

// End ends one attachment that [Node.Stale] gave, if it is still the same one:
// the runtime may have ended it, and used its name again. wait bounds the wait
// for what is on its way home. The error wraps [statefile.ErrBusy] when another
// process works on the attachment. Where the IPAM plugin is missing there is no
// error, and the record stays, in phase [ledger.Freeing].
func (n *Node) End(ctx context.Context, stale *ledger.Record, wait time.Duration) error {
	lock, err := n.Ledger.TryLockAttachment(stale.Key)
	if err != nil {
		return err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	r, err := n.Ledger.Get(stale.Key)
	if errors.Is(err, ledger.ErrNoRecord) {
		return nil
	}
	if err != nil {
		return err
	}
	if !r.Same(stale) || r.Phase != ledger.Freeing && n.alive(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepWait)
	defer cancel()
	return n.settle(ctx, r, wait)
}

// OnTheirWay gives those of the attachments that [Node.Stale] gave whose NIC is
// nowhere to be seen, though a driver holds it: the kernel is about to put it
// into init_net. It tells nothing of RDMA devices.
func (n *Node) OnTheirWay(stale []*ledger.Record) (map[ledger.Key]bool, error) {
	links, err := n.Host.Netns.Links()
	if err != nil {
		return nil, err
	}
	// Where the kernel puts them, if that is not here; a container may not look there.
	if first, err := link.OpenNetns(initNetns); err == nil {
		if !first.ID.Equal(n.Host.Netns.ID) {
			there, _ := first.Links() // what is not seen is waited for
			links = append(links, there...)
		}
		first.Close()
	}
	away := map[ledger.Key]bool{}
	for _, r := range stale {
		if !n.Ledger.OfThisBoot(r) || r.Phase == ledger.Freeing || r.Loan == nil || r.Loan.Driver != "" || r.Loan.Identity.ParentDev == "" {
			continue
		}
		seen := slices.ContainsFunc(links, func(l *link.Link) bool { return l.ParentDev == r.Loan.Identity.ParentDev })
		away[r.Key] = !seen && n.bound(r.Loan.Identity.ParentDev)
	}
	return away, nil
}

// takeBack takes the interface out of the pod: a macvlan is deleted, a NIC
// goes home. It does nothing where there is nothing to do, and may be called
// again. wait bounds how long it waits for a NIC that falls home by itself;
// silent is called when the interface answers for no address and what is left
// is the kernel's work.
func (n *Node) takeBack(ctx context.Context, r *ledger.Record, wait time.Duration, silent func()) error {
	pod, err := link.FindNetns(r.Netns.NetnsID, r.Netns.Path)
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod != nil {
		pod.Unread = func(l *link.Link) { warnUnread(n.log(r), pod, l) }
	}
	if r.Child != nil {
		return n.deleteChild(ctx, r, pod, wait, silent)
	}
	return n.bringHome(ctx, r, pod, wait, silent)
}

// homeOf opens the netns that the record's NIC belongs to. When that is gone
// itself (a nested runtime's), the kernel gave the NIC to init_net.
func (n *Node) homeOf(r *ledger.Record) (home *link.Netns, done func(), err error) {
	if r.HostNetns.Equal(n.Host.Netns.ID) {
		return n.Host.Netns, func() {}, nil
	}
	home, err = link.FindNetns(r.HostNetns.NetnsID, r.HostNetns.Path)
	if home == nil && err == nil {
		home, err = link.OpenNetns(initNetns)
	}
	if err != nil {
		return nil, nil, err
	}
	return home, home.Close, nil
}

// initNetns is the first process's netns: the kernel's init_net, except in a
// container that has a pid namespace of its own.
const initNetns = "/proc/1/ns/net"

// bringHome brings a lent NIC back from wherever it is: its RDMA devices, and
// its netdev whatever became of those.
func (n *Node) bringHome(ctx context.Context, r *ledger.Record, pod *link.Netns, wait time.Duration, silent func()) error {
	home, done, err := n.homeOf(r)
	if err != nil {
		return err
	}
	defer done()
	rdmaErr := n.rdmaHome(ctx, r, pod, home, wait)
	if r.Loan == nil || r.Loan.Driver != "" {
		return rdmaErr // no netdev was moved
	}
	return errors.Join(rdmaErr, n.netdevHome(ctx, r, pod, home, wait, silent))
}

// netdevHome brings the NIC's netdev back, and gives it its snapshot's state.
func (n *Node) netdevHome(ctx context.Context, r *ledger.Record, pod, home *link.Netns, wait time.Duration, silent func()) error {
	id, snapshot := r.Loan.Identity, r.Loan.Snapshot
	if pod != nil {
		l, err := pod.FindAt(r.Loan.PodIndex, id, r.IfName, snapshot.Name)
		if err != nil {
			return err
		}
		if l != nil {
			n.deleteStacked(r, pod, nil, l.Index)
			return n.moveHome(ctx, r, pod, home, l, silent)
		}
	}
	l, away, err := n.awaitHome(ctx, r, home, wait)
	switch {
	case err != nil:
		return err
	case l == nil && id.ParentDev != "" && n.bound(id.ParentDev) && !(wait > 0 && n.netdevGone(r, home)):
		return cnierr.Wrap(errNowhere, cnierr.NotHome, "find it with `ip -all netns exec ip link`; a sweep or `railctl gc` tries again",
			"the NIC %s (%s) is neither on the host nor in the pod netns %s", snapshot.Name, id.ParentDev, r.Netns.Path)
	case l == nil:
		// A virtual link died with its netns; a device was unplugged.
		n.log(r).Warn("the NIC no longer exists, there is nothing to bring home")
		return nil
	case away != nil:
		defer away.Close()
		if pod != nil {
			n.deleteStacked(r, pod, away, l.Index)
		}
		return n.moveHome(ctx, r, away, home, l, silent)
	}
	if pod != nil {
		n.deleteStacked(r, pod, home, l.Index)
	}
	return n.restore(ctx, r, home, l)
}

// errNowhere: a NIC is not to be seen, though a driver holds its device. It may
// still answer for its addresses: a netns that only a socket keeps alive, or one
// within the pod's, cannot be found on every kernel.
var errNowhere = errors.New("it is on its way, or in a netns that nothing leads to")

// netdevGone says whether the NIC that was lent no longer exists, after it was
// nowhere for long: its device has no netdev in any netns, or another one.
func (n *Node) netdevGone(r *ledger.Record, home *link.Netns) bool {
	id := r.Loan.Identity
	if found, _ := filepath.Glob(filepath.Join(n.Host.Sys, "bus", id.ParentBus, "devices", id.ParentDev, "net")); len(found) == 0 {
		return true
	}
	if !n.hasOneNIC(id.ParentDev) {
		return false
	}
	links, err := home.Links()
	if err != nil {
		return false
	}
	return n.anotherHas(r, func(other *ledger.Record) bool {
		return other.Loan != nil && other.Loan.Identity.ParentDev == id.ParentDev && other.Loan.Identity.PermMAC != id.PermMAC
	}) || slices.ContainsFunc(links, func(l *link.Link) bool {
		return l.ParentDev == id.ParentDev && l.Alias != r.Loan.Name // which is how it falls home
	})
}

// hasOneNIC says whether the device has one netdev and one RDMA device at most: it is
// a virtual function or a subfunction. When such a one is created again it has
// the same place, and another MAC and GUID.
func (n *Node) hasOneNIC(dev string) bool {
	found, _ := filepath.Glob(filepath.Join(n.Host.Sys, "bus", "*", "devices", dev, "physfn"))
	more, _ := filepath.Glob(filepath.Join(n.Host.Sys, "bus", "*", "devices", dev, "sfnum"))
	return len(found)+len(more) > 0
}

// anotherHas says whether another attachment has what is asked for.
func (n *Node) anotherHas(r *ledger.Record, has func(*ledger.Record) bool) bool {
	records, _ := n.Ledger.List() // what cannot be read proves nothing
	return slices.ContainsFunc(records, func(other *ledger.Record) bool {
		return other.Key != r.Key && other.Phase != ledger.Freeing && n.Ledger.OfThisBoot(other) && has(other)
	})
}

// awaitHome looks for the NIC on the host, where the kernel puts it when its
// pod netns dies, and until wait is over if it can still come. The kernel puts
// it into init_net even when the host netns is another; away is then open.
func (n *Node) awaitHome(ctx context.Context, r *ledger.Record, home *link.Netns, wait time.Duration) (l *link.Link, away *link.Netns, err error) {
	id, hints := r.Loan.Identity, []string{r.Loan.Snapshot.Name, r.IfName}
	deadline := time.Now().Add(wait)
	for {
		l, err = home.Find(id, hints...)
		if l != nil || err != nil || id.ParentDev == "" {
			return l, nil, err
		}
		if away, err = link.OpenNetns(initNetns); err == nil {
			l, err = away.Find(id, hints...)
			if l != nil && !away.ID.Equal(home.ID) {
				return l, away, nil
			}
			away.Close()
		}
		if err != nil || time.Now().After(deadline) || ctx.Err() != nil || !n.bound(id.ParentDev) {
			return nil, nil, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// bound says whether a driver holds the device, so that what it made of it is
// somewhere: without one its netdevs and RDMA devices are gone.
func (n *Node) bound(dev string) bool {
	found, _ := filepath.Glob(filepath.Join(n.Host.Sys, "bus", "*", "devices", dev, "driver"))
	return len(found) > 0
}

// moveHome moves the NIC l from a netns to the host's, and restores it there.
// When its name is taken on the host it stays where it is.
func (n *Node) moveHome(ctx context.Context, r *ledger.Record, from, home *link.Netns, l *link.Link, silent func()) error {
	s := r.Loan.Snapshot
	// Altnames that the pod added go first: one that is taken on the host
	// would make the kernel refuse the move, and the pod could keep the NIC.
	if err := from.KeepAltNames(l, s.AltNames); err != nil {
		n.log(r).Warn("altnames given in the pod could not be removed", "err", err)
	}
	taken, name, err := n.makeRoom(ctx, r, home, nil, append([]string{s.Name}, s.AltNames...)...)
	if err != nil {
		return err
	}
	if taken != nil {
		return cnierr.New(cnierr.NotHome, fmt.Sprintf("rename or remove that link, then end the attachment again (%s)", r.Key),
			"%s cannot come home: the host has another link named %q (%s)", s.Name, name, describe(taken))
	}
	if from.SetDown(l.Index) == nil {
		silent()
	}
	err = from.MoveAs(l.Index, home, s.Name, s.Alias)
	if errors.Is(err, unix.EEXIST) {
		// Another link of the pod has the name. Rather does the host see the
		// pod's name for an instant than that a pod can keep the NIC.
		err = from.Move(l.Index, home, s.Name, s.Alias)
	}
	if err != nil {
		return errors.Join(
			cnierr.Wrap(err, cnierr.NotHome, "a DEL, a sweep or `railctl gc` tries again", "%s cannot come home", s.Name),
			n.putBack(r, from, home))
	}
	arrived, err := home.ByName(s.Name)
	if err != nil {
		return err
	}
	return n.restore(ctx, r, home, arrived)
}

// putBack undoes a move home that failed: a NIC that reached the host under
// the pod's name goes back to the pod, and there it is up, as it was, but without
// the addresses, which may be another pod's by now.
func (n *Node) putBack(r *ledger.Record, pod, home *link.Netns) error {
	id, s := r.Loan.Identity, r.Loan.Snapshot
	l, err := home.Find(id, r.IfName)
	if err != nil {
		return err
	}
	if l != nil && l.Name != s.Name {
		if err := home.Move(l.Index, pod, r.IfName, s.Name); err != nil {
			return err
		}
	}
	l, err = pod.FindAt(r.Loan.PodIndex, id, r.IfName, s.Name)
	if err != nil || l == nil {
		return err
	}
	return errors.Join(pod.FlushAddresses(l.Index), pod.SetUp(l.Index))
}

const (
	restoreTries = 3
	restorePause = 20 * time.Millisecond
)

// restore gives a NIC that is home the state of its snapshot.
func (n *Node) restore(ctx context.Context, r *ledger.Record, home *link.Netns, l *link.Link) error {
	s := r.Loan.Snapshot
	// Altnames come first: a pod can add any number, and they hinder other
	// programs of the host until they are gone.
	if err := home.KeepAltNames(l, s.AltNames); err != nil {
		n.log(r).Warn("altnames given in the pod could not be removed", "err", err)
	}
	names := append([]string{s.Name}, s.AltNames...)
	if slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(l.Names(), name) }) {
		taken, name, err := n.makeRoom(ctx, r, home, l, names...)
		if err != nil {
			return err
		}
		if taken != nil {
			return cnierr.New(cnierr.NotHome, "rename or remove that link",
				"%s is home as %s, but the host has another link named %q (%s)", s.Name, l.Name, name, describe(taken))
		}
	}
	// While the NIC is down: the pod's programs must see no packet of others.
	missing, err := n.detachPrograms(r, home, l.Index)
	if err != nil {
		return cnierr.Wrap(err, cnierr.NotHome, "", "%s is home, but not as it was", s.Name)
	}
	lost, err := home.Restore(l.Index, s)
	// What is lost now is lost for good, because the record goes: a reason that
	// passes (no memory, something busy) must not be enough.
	for try := 1; try < restoreTries && len(lost) > 0 && err == nil; try++ {
		time.Sleep(restorePause)
		lost, err = home.Restore(l.Index, s)
	}
	var changed []link.Changed
	if err == nil { // else the name may be another's, and the next try comes here
		changed = append(home.RestoreDevice(l.Index, s.Name, s.Device), home.RestoreFunctions(l.Index, s.Functions)...)
	}
	n.report(r, lost, changed, missing)
	return cnierr.Wrap(err, cnierr.NotHome, "", "%s is home, but not as it was", s.Name)
}
