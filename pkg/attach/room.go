package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// makeRoom returns the host link that has one of the names that a NIC needs at home,
// its own name first, or nil if the names are free. When a pod netns dies, the kernel
// moves its NIC to the host, which keeps its name in the pod if that name is free
// there. The name may be that of another NIC that is lent. makeRoom ends such an
// attachment first, or renames the NIC if its pod is still running. l is the returned
// NIC if it is home already. It gets a temporary name meanwhile, because the two NICs
// may have each other's names.
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
			switch changed, err := n.renameFallen(home, taken.Index, other); {
			case errors.Is(err, statefile.ErrBusy):
			case err != nil || !changed:
				return taken, name, err
			}
			time.Sleep(restorePause)
			continue
		}
		if tempName := fmt.Sprintf("dev%d", index); l != nil && l.Name != tempName && l.Name != names[0] {
			if err := home.Rename(index, tempName); err != nil {
				return taken, name, cnierr.Wrap(err, cnierr.NotHome, fmt.Sprintf("rename it by hand, then end the attachment again (%s)", r.Key), "rename the returned NIC %s to %s", l.Name, tempName)
			}
			l.Name = tempName // as the kernel would have called it
		}
		err = n.End(ctx, other, 0)
		if errors.Is(err, statefile.ErrBusy) {
			time.Sleep(restorePause) // the process that works on it may be waiting for our name
			continue
		}
		ended[other.Key] = true
		if err != nil {
			n.log(other).Warn("an attachment without a pod netns could not be ended", "err", err)
		}
	}
}

// roomWait bounds the wait for another process that is returning a NIC.
const roomWait = 5 * time.Second

// renameFallen renames a NIC on the host whose pod is still running, and removes the
// altnames that the pod added. The pod moved the NIC to a netns of its own, which
// ended, and the kernel moved the NIC to the host with the names that the pod chose.
// It gets its own name back when its attachment ends. changed reports whether the
// NIC may have other names now. The error wraps [statefile.ErrBusy] while another
// process works on the attachment.
func (n *Node) renameFallen(home *link.Netns, index int, of *ledger.Record) (changed bool, err error) {
	lock, err := n.Ledger.TryLockAttachment(of.Key)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.UnlockAndRemove() }()
	l, err := home.ByIndex(index)
	if err != nil {
		return true, nil //nolint:nilerr // it has left
	}
	changed = slices.ContainsFunc(l.AltNames, func(name string) bool { return !slices.Contains(of.Loan.Snapshot.AltNames, name) })
	if err := home.KeepAltNames(l, of.Loan.Snapshot.AltNames); err != nil {
		n.log(of).Warn("altnames given in the pod could not be removed", "err", err)
	}
	if l.Name == of.Loan.Name {
		return changed, nil
	}
	name := fmt.Sprintf("dev%d", index) // as the kernel would have called it
	for try := 1; try < renameTries; try++ {
		if err = home.Rename(index, name); !errors.Is(err, unix.EEXIST) {
			break
		}
		name = fmt.Sprintf("dev%d-%d", index, try) // a pod may have taken that name too
	}
	if err != nil {
		return false, cnierr.Wrap(err, cnierr.NotHome, "rename it by hand, then end the attachment again", "rename NIC %s, which returned while its pod is running, to %s", l.Name, name)
	}
	n.log(of).Warn("NIC of a running pod returned under the name of another NIC, renamed", "name", l.Name, "now", name)
	return true, nil
}

// renameTries bounds the search for an unused name.
const renameTries = 20

// fallenAs returns the record, other than mine, of the NIC l, or nil. The kernel moved
// that NIC to the host because a netns ended; its attachment has not ended.
func (n *Node) fallenAs(home *link.Netns, l *link.Link, mine *ledger.Record) (*ledger.Record, error) {
	records, _ := n.Ledger.List() // an attachment whose record cannot be read cannot be ended
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
