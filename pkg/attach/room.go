package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// makeRoom returns the link of the host that has one of the names that a NIC needs
// at home, its own one first, or nil. A NIC whose pod netns died keeps its name
// there, if the host has none like it: and that may be another's, which is lent as
// well. Such an attachment is ended first. If its pod lives, the NIC is renamed. l is
// the NIC, if it is home already: it gives up its name for that time, because the
// two may have each other's.
func (n *Node) makeRoom(ctx context.Context, r *ledger.Record, home *link.Netns, l *link.Link, names ...string) (taken *link.Link, name string, err error) {
	index := 0
	if l != nil {
		index = l.Index
	}
	ended := map[ledger.Key]bool{}
	for deadline := time.Now().Add(roomWait); ; {
		taken, name, err = home.NameTaken(names, index)
		if taken == nil || err != nil {
			return taken, name, err
		}
		other, err := n.fallenAs(home, taken, r)
		if other == nil || err != nil || ended[other.Key] || time.Now().After(deadline) || ctx.Err() != nil {
			return taken, name, err
		}
		if n.alive(other) {
			if err := n.setAside(home, taken.Index, other); err != nil && !errors.Is(err, statefile.ErrBusy) {
				return taken, name, err
			}
			time.Sleep(restorePause)
			continue
		}
		if aside := fmt.Sprintf("dev%d", index); l != nil && l.Name != aside && l.Name != names[0] {
			if err := home.Rename(index, aside); err != nil {
				return taken, name, cnierr.Wrap(err, cnierr.NotHome, fmt.Sprintf("rename it by hand, then end the attachment again (%s)", r.Key), "rename %s, which is home, to %s", l.Name, aside)
			}
			l.Name = aside // as the kernel would have called it
		}
		err = n.End(ctx, other, 0)
		if errors.Is(err, statefile.ErrBusy) {
			time.Sleep(restorePause) // whoever works on it may be waiting for our name
			continue
		}
		ended[other.Key] = true
		if err != nil {
			n.log(other).Warn("an attachment without a pod netns could not be ended", "err", err)
		}
	}
}

// roomWait bounds the wait for another process that brings a NIC into order.
const roomWait = 5 * time.Second

// setAside takes its name, and altnames that it had not, from a NIC on the host
// whose pod lives: the pod moved it to a netns of its own that ended, and the
// kernel brought it here, with the names that the pod chose. Its own end renames it.
// The error wraps [statefile.ErrBusy] while another process works on it.
func (n *Node) setAside(home *link.Netns, index int, of *ledger.Record) error {
	lock, err := n.Ledger.TryLockAttachment(of.Key)
	if err != nil {
		return err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	l, err := home.ByIndex(index)
	if err != nil || l.Name == of.Loan.Name {
		return nil // it has left, or has its own name again
	}
	if err := home.KeepAltNames(l, of.Loan.Snapshot.AltNames); err != nil {
		n.log(of).Warn("altnames given in the pod could not be removed", "err", err)
	}
	name := fmt.Sprintf("dev%d", index) // as the kernel would have called it
	for try := 1; try < asideTries; try++ {
		if err = home.Rename(index, name); !errors.Is(err, unix.EEXIST) {
			break
		}
		name = fmt.Sprintf("dev%d-%d", index, try) // a pod may have taken that name too
	}
	if err != nil {
		return cnierr.Wrap(err, cnierr.NotHome, "rename it by hand, then end the attachment again", "rename %s, which its pod let fall home, to %s", l.Name, name)
	}
	n.log(of).Warn("a NIC that its pod let fall home had the name of another", "name", l.Name, "now", name)
	return nil
}

// asideTries bounds the tries to find a name that nobody has.
const asideTries = 20

// fallenAs returns the record, other than mine, of the NIC l that is home though
// no attachment has ended, because a pod netns is gone, or nil.
func (n *Node) fallenAs(home *link.Netns, l *link.Link, mine *ledger.Record) (*ledger.Record, error) {
	records, _ := n.Ledger.List() // one that cannot be read is nobody to be ended
	for _, r := range records {
		if r.Key == mine.Key || r.Loan == nil || r.Loan.Driver != "" || r.Phase == ledger.Freeing || !n.Ledger.OfThisBoot(r) ||
			!r.HostNetns.Equal(home.ID) {
			continue
		}
		found, err := home.Find(r.Loan.Identity, r.Loan.Name, r.IfName)
		if err != nil || found != nil && found.Index == l.Index {
			return r, err
		}
	}
	return nil, nil
}
