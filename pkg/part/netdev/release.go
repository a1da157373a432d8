package netdev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/settings"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/part/vf"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Release returns the NIC from whatever netns the NIC is in, and restores the state of its
// snapshot. If no netdev is lent, Release does nothing.
func (*Part) Release(ctx context.Context, releasing *attachment.Releasing) error {
	n, r, pod := releasing.Node, releasing.Record, releasing.Pod
	if !r.LendsNetdev() {
		return nil
	}
	if r.MadeAnew() && releasing.Failed {
		return nil // the RDMA device has not returned yet: its move would destroy the netdev again
	}
	id, snapshot := r.Loan.Identity, r.Loan.Snapshot
	if pod != nil {
		l, err := link.FindAt(pod, r.Loan.PodIndex, id, r.IfName, snapshot.Name)
		if err != nil {
			return err
		}
		if l != nil {
			return returnNIC(ctx, releasing, pod, l)
		}
	}
	l, ns, err := awaitReturn(ctx, releasing)
	switch {
	case err != nil:
		return err
	case l == nil && id.ParentDev != "" && n.Host().Bound(id.ParentDev) && !(releasing.Conclusive() && gone(releasing)):
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the NIC %s (%s) is neither on the host nor in the pod netns %s",
			snapshot.Name, id.ParentDev, r.Netns.Path).
			Cure("find the NIC with `ip -all netns exec ip link`; a sweep or `railctl gc` tries again. If the NIC no longer exists, a DEL or rail-agent ends the attachment")
	case l == nil:
		// A virtual link was deleted with its netns; a device was unplugged.
		n.LogOf(r).Warn("NIC no longer exists")
		return nil
	case ns != nil:
		defer ns.Close()
		deleteStray(n, r, ns, l.Index)
		return returnNIC(ctx, releasing, ns, l)
	}
	return restore(ctx, releasing, l)
}

// gone reports whether the NIC that was lent no longer exists: its device has no netdev in any
// netns, or has another netdev. Call gone only after a long search for the NIC.
func gone(releasing *attachment.Releasing) bool {
	n, r, host := releasing.Node, releasing.Record, releasing.Node.Host()
	id := r.Loan.Identity
	if !host.HasNetdev(id.ParentDev) {
		return true
	}
	if !host.HasOneNIC(id.ParentDev) {
		return false
	}
	links, err := link.Links(releasing.Home)
	if err != nil {
		return false
	}
	return n.AnotherHas(r, func(other *ledger.Record) bool {
		return other.Loan != nil && other.Loan.Identity.ParentDev == id.ParentDev && other.Loan.Identity.Hardware() != id.Hardware()
	}) || slices.ContainsFunc(links, func(l *link.Link) bool {
		return l.ParentDev == id.ParentDev && l.Alias != r.Loan.Name // the lent NIC would have returned with this alias
	})
}

// awaitReturn looks for the NIC on the host, where the kernel moves the NIC when its
// pod netns ends, and waits as long as the NIC may still come. The kernel moves a NIC
// to init_net even if the host netns is another netns. In that case ns is init_net,
// and the caller closes it.
func awaitReturn(ctx context.Context, releasing *attachment.Releasing) (l *link.Link, ns *netns.Netns, err error) {
	r, home, host := releasing.Record, releasing.Home, releasing.Node.Host()
	id, hints := r.Loan.Identity, []string{r.Loan.Snapshot.Name, r.IfName}
	came, err := releasing.Await(ctx, func() int { return releasing.Node.NICsMoving() }, func() (done bool, err error) {
		l, err = link.Find(home, id, hints...)
		if l != nil || err != nil || id.ParentDev == "" {
			return true, err
		}
		if ns, err = netns.Open(netns.InitPath); err != nil {
			ns = nil
			return !host.Bound(id.ParentDev), nil // a container may not be permitted to open init_net
		}
		if l, err = link.Find(ns, id, hints...); l != nil && !ns.ID.Equal(home.ID) {
			return true, nil
		}
		ns.Close()
		ns = nil
		return !host.Bound(id.ParentDev), err
	})
	if !came {
		err = failure.Wrap(ctx.Err(), failure.NotReturned, "the wait for the NIC %s was too short", r.Loan.Snapshot.Name)
	}
	return l, ns, err
}

// returnNIC moves the NIC l from the netns from to the host, and restores it there. If another
// link of the host has the NIC's name, the NIC stays in from.
func returnNIC(ctx context.Context, releasing *attachment.Releasing, from *netns.Netns, l *link.Link) error {
	n, r, home := releasing.Node, releasing.Record, releasing.Home
	s := r.Loan.Snapshot
	prepare := func() error {
		// First remove the altnames that the pod added. If a link of the host has one of them,
		// the kernel would refuse the move, so the pod could keep the NIC.
		if err := link.KeepAltNames(from, l, s.AltNames); err != nil && !errors.Is(err, link.ErrNotFound) { // the next step reports that
			n.LogOf(r).Warn("cannot remove altnames that the pod gave the NIC", "err", err)
		}
		return freeNames(ctx, releasing, append([]string{s.Name}, s.AltNames...))
	}
	if err := prepare(); err != nil {
		return err
	}
	if releasing.Leaving(ctx) {
		var err error
		if l, err = link.ByIndex(from, l.Index); err == nil {
			err = prepare()
		}
		if err != nil {
			return err
		}
	}
	if link.SetDown(from, l.Index) == nil {
		releasing.Silent()
	}
	device.ForgetApplications(from, l.Name, s.Device)
	err := link.MoveAs(from, l, home, s.Name, s.Alias)
	if errors.Is(err, unix.EEXIST) {
		// Another link of the pod has the name. A wrong name on the host for a short time is
		// better than a NIC that stays in the pod.
		err = link.Move(from, l.Index, home, s.Name, s.Alias)
	}
	if err != nil {
		return errors.Join(
			failure.From(err, failure.NotReturned, "cannot return %s", s.Name).Cure("a DEL, a sweep or `railctl gc` tries again"),
			undoReturn(r, from, home))
	}
	arrived, err := link.ByName(home, s.Name)
	if err != nil {
		return err
	}
	return restore(ctx, releasing, arrived)
}

// freeNames makes the names of a NIC that is about to move to the host free there.
func freeNames(ctx context.Context, releasing *attachment.Releasing, names []string) error {
	home := releasing.Home
	if taken, _, err := link.NameTaken(home, names, 0); taken == nil || err != nil {
		return err // nearly always free
	}
	unlock, err := lockNames(ctx, releasing)
	if err != nil {
		return err
	}
	defer unlock()
	taken, name, err := makeRoom(ctx, releasing, 0, names...)
	if err != nil || taken == nil {
		return err
	}
	return failure.New(failure.NotReturned, "cannot return %s: the host has another link named %q (%s)", names[0], name, taken.Describe()).
		Cure("rename or remove that link, then end the attachment again (%s)", releasing.Record.Key)
}

// lockNames takes the ledger's lock of names. A conclusive release waits longer for the lock,
// because the process that has the lock may be waiting for a driver to stop another NIC in the
// kernel.
func lockNames(ctx context.Context, releasing *attachment.Releasing) (unlock func(), err error) {
	bound := roomWait
	if releasing.Conclusive() {
		bound = namesWait
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	lock, err := releasing.Node.Ledger.LockNames(ctx)
	if err != nil {
		return nil, fmt.Errorf("names of the host's links: %w", err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// undoReturn undoes a failed move to the host. A NIC that arrived under its name in the pod goes
// back to the pod and is up there, as before. It gets no addresses, because they may belong to
// another pod by now.
func undoReturn(r *ledger.Record, pod, home *netns.Netns) error {
	id, s := r.Loan.Identity, r.Loan.Snapshot
	l, err := link.Find(home, id, r.IfName)
	if err != nil {
		return err
	}
	if l != nil && l.Name != s.Name {
		if err := link.Move(home, l.Index, pod, r.IfName, s.Name); err != nil {
			return err
		}
	}
	l, err = link.FindAt(pod, r.Loan.PodIndex, id, r.IfName, s.Name)
	if err != nil || l == nil {
		return err
	}
	return errors.Join(link.FlushAddresses(pod, l.Index), link.SetUp(pod, l.Index))
}

// restoreNames makes the names of a NIC that is on the host free, and renames the NIC to its own
// name. It then gives up the lock of names, because all NICs of a pod that has ended wait for
// that lock.
func restoreNames(ctx context.Context, releasing *attachment.Releasing, l *link.Link) error {
	s, home := releasing.Record.Loan.Snapshot, releasing.Home
	// If the NIC has its own name as an altname, the pod added that altname: it does not count.
	if l.Name == s.Name && !slices.ContainsFunc(s.AltNames, func(name string) bool { return !slices.Contains(l.AltNames, name) }) {
		return nil
	}
	unlock, err := lockNames(ctx, releasing)
	if err != nil {
		return err
	}
	defer unlock()
	taken, name, err := makeRoom(ctx, releasing, l.Index, append([]string{s.Name}, s.AltNames...)...)
	if err != nil {
		return err
	}
	if taken != nil {
		return failure.New(failure.NotReturned, "%s was returned as %s, but the host has another link named %q (%s)", s.Name, l.Name, name, taken.Describe()).
			Cure("rename or remove that link")
	}
	_ = link.Rename(home, l.Index, s.Name) // nicstate.Restore tries again, and returns the error
	return nil
}

const (
	restoreTries = 3
	restorePause = 20 * time.Millisecond
)

// reclaim restores the names of a NIC that is on the host, and removes what the pod put on the NIC:
// altnames and links. l is the NIC as it was just read. reclaim returns the NIC as it is
// afterwards.
func reclaim(ctx context.Context, releasing *attachment.Releasing, l *link.Link) (*link.Link, error) {
	n, r, home := releasing.Node, releasing.Record, releasing.Home
	s := r.Loan.Snapshot
	changed := l.Name != s.Name || !slices.Equal(l.AltNames, s.AltNames)
	// Altnames are removed first: a pod can add any number of altnames, and until they are
	// removed they slow down other programs of the host.
	if err := link.KeepAltNames(home, l, s.AltNames); err != nil && !errors.Is(err, link.ErrNotFound) { // the next step reports that
		n.LogOf(r).Warn("cannot remove altnames that the pod gave the NIC", "err", err)
	}
	// The children are deleted before the NIC gets its name back: a network manager of the host
	// may know the NIC by that name, and would set up the NIC together with its children.
	if deleteStray(n, r, home, l.Index) {
		changed = true
	}
	if err := restoreNames(ctx, releasing, l); err != nil {
		return nil, err
	}
	// The pod can put links on the NIC until the NIC has left the pod netns.
	if releasing.Pod != nil && deleteStacked(n, r, releasing.Pod, home, l.Index) {
		changed = true
	}
	if !changed {
		return l, nil
	}
	return link.ByIndex(home, l.Index)
}

// restore restores the state of a NIC that is on the host to that of its snapshot. l is the NIC as
// it was just read. restore reads the NIC again after it has changed the NIC.
func restore(ctx context.Context, releasing *attachment.Releasing, l *link.Link) error {
	n, r, home := releasing.Node, releasing.Record, releasing.Home
	s := r.Loan.Snapshot
	l, err := reclaim(ctx, releasing, l)
	if err != nil {
		return err
	}
	// Programs are detached while the NIC is down, because the pod's programs must not see packets
	// of the host or of another pod.
	missing, err := detachPrograms(n, r, home, l)
	if err != nil {
		return failure.Wrap(err, failure.NotReturned, "%s was returned, but not as it was", s.Name)
	}
	if err := vf.Restore(ctx, releasing); err != nil {
		return err
	}
	lent := sync.OnceValue(func() []*ledger.Record {
		records, _ := nicsLent(n) // nothing is known about a record that cannot be read
		return records
	})
	restore := func() (lost []error, err error) {
		lost, err = nicstate.Restore(home, l, s)
		return slices.DeleteFunc(lost, func(err error) bool { return returnWithOthers(err, lent) }), err
	}
	lost, err := restore()
	// A setting that cannot be restored now can never be restored, because the record will be
	// removed. So a temporary error (no memory, something busy) must not be the last try.
	again := func(err error) bool { return !errors.Is(err, nicstate.ErrVirtual) }
	c := &comparison{releasing: releasing, index: l.Index}
	for try := 1; try < restoreTries && slices.ContainsFunc(lost, again) && err == nil; try++ {
		c.lost = lost
		if gone, _ := c.check(); gone { // compare, below, reports the error of check
			break // compare waits for the manager of the NIC
		}
		_ = wait.For(ctx, restorePause)
		if l, err = link.ByIndex(home, l.Index); err == nil {
			lost, err = restore()
		}
	}
	var left []link.Changed
	if err == nil { // otherwise another link may have the name, and the next release tries again
		left = append(device.Restore(home, l.Index, s.Name, s.Device), sriov.Restore(home, l.Index, s.Functions)...)
		left = append(left, settings.MoreReceivers(home, l.Index, s.Receivers)...)
		c.lost = lost
		lost = c.compare(ctx, func() []error {
			now, err := link.ByIndex(home, l.Index)
			if err != nil {
				return lost
			}
			l = now
			still, err := restore() // what a manager has changed on the link itself stays
			if errors.Is(err, link.ErrNotFound) {
				return lost
			}
			return still
		})
	}
	n.ReportReturned(r, lost, left, missing)
	return failure.Wrap(err, failure.NotReturned, "%s was returned, but not as it was", s.Name)
}

// returnWithOthers reports whether err is about nexthops over other NICs that are lent. Such
// nexthops return together with their NICs.
func returnWithOthers(err error, lent func() []*ledger.Record) bool {
	var missing *nicstate.MissingHops
	return errors.As(err, &missing) && !slices.ContainsFunc(missing.Links, func(hop nicstate.HopLink) bool {
		return !slices.ContainsFunc(lent(), func(r *ledger.Record) bool { return hop.Is(r.Loan.Identity, r.Loan.Snapshot.Name) })
	})
}
