package netdev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Bounds for freeing the names of a NIC.
const (
	roomWait  = 5 * time.Second
	namesWait = 30 * time.Second // for the lock of names, in a conclusive release
)

// makeRoom returns the host link that has one of the names that a NIC needs on the
// host, its own name first, or nil if the names are free. When a netns ends, the
// kernel moves its NIC to the host, where it keeps its name in the pod if that name
// is free. The name may be that of another NIC that is lent. makeRoom renames such a
// link: it gets its own name back when its own attachment ends. index is that of the
// NIC if it is on the host already, else 0.
//
// The caller holds the ledger's lock of names: a NIC that another process is just
// giving its own name must not be renamed.
func makeRoom(ctx context.Context, releasing *attachment.Releasing, index int, names ...string) (taken *link.Link, name string, err error) {
	n, r, home := releasing.Node, releasing.Record, releasing.Home
	for deadline := time.Now().Add(roomWait); ; {
		taken, name, err = link.NameTaken(home, names, index)
		if taken == nil || err != nil || time.Now().After(deadline) || ctx.Err() != nil {
			return taken, name, err
		}
		other, err := returnedAs(n, home, taken, r)
		if err == nil && other == nil && madeBeside(r, taken) {
			if err := link.Rename(home, taken.Index, fmt.Sprintf("dev%d", taken.Index)); err != nil {
				return taken, name, nil //nolint:nilerr // the caller says that the name is taken
			}
			continue
		}
		if other == nil || err != nil {
			return taken, name, err
		}
		if changed, err := renameReturned(n, home, taken.Index, other); err != nil || !changed {
			return taken, name, err
		}
		if wait.For(ctx, restorePause) != nil { // altnames may take another try
			return taken, name, nil
		}
	}
}

// madeBeside reports whether l is the InfiniBand interface of another port of the HCA whose interface the record
// lends: the kernel made it with the move of the RDMA device, under a free name.
func madeBeside(r *ledger.Record, l *link.Link) bool {
	id := r.Loan.Identity
	return r.MadeAnew() && l.IsIPoIB() && l.ParentDev == id.ParentDev && l.Identity().Hardware() != id.Hardware()
}

// renameReturned renames a NIC that the kernel returned to the host because its netns
// ended: the pod chose its present name. It also removes the altnames that the pod
// added. The NIC gets its own name back when its attachment ends. changed reports
// whether the NIC may have other names now.
func renameReturned(n *attachment.Node, home *netns.Netns, index int, of *ledger.Record) (changed bool, err error) {
	l, err := link.ByIndex(home, index)
	if err != nil {
		return true, nil //nolint:nilerr // it has left
	}
	changed = slices.ContainsFunc(l.AltNames, func(name string) bool { return !slices.Contains(of.Loan.Snapshot.AltNames, name) })
	err = link.KeepAltNames(home, l, of.Loan.Snapshot.AltNames)
	if errors.Is(err, link.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		n.LogOf(of).Warn("cannot remove altnames that the pod gave the NIC", "err", err)
	}
	if l.Name == of.Loan.Name {
		return changed, nil
	}
	name := fmt.Sprintf("dev%d", index) // as the kernel would have called it
	for try := 1; try < renameTries; try++ {
		if err = link.Rename(home, index, name); !errors.Is(err, unix.EEXIST) {
			break
		}
		name = fmt.Sprintf("dev%d-%d", index, try) // a pod may have taken that name too
	}
	if errors.Is(err, link.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, failure.From(err, failure.NotReturned, "rename NIC %s, which returned before its attachment ended, to %s", l.Name, name).
			Cure("rename it by hand, then end the attachment again")
	}
	n.LogOf(of).Warn("returned NIC was renamed, because it still had its name in the pod", "name", l.Name, "now", name)
	return true, nil
}

// renameTries bounds the search for an unused name.
const renameTries = 20

// returnedAs returns the record, other than mine, of the NIC l, or nil. The kernel moved
// that NIC to the host because a netns ended; its attachment has not ended.
func returnedAs(n *attachment.Node, home *netns.Netns, l *link.Link, mine *ledger.Record) (*ledger.Record, error) {
	others, _ := n.Ledger.Held(home.ID, func(r *ledger.Record) bool { return r.Key != mine.Key && r.LendsNetdev() })
	for _, r := range others { // an attachment with an unreadable record cannot be ended
		found, err := link.Find(home, r.Loan.Identity, r.Loan.Name, r.IfName)
		if err != nil || found != nil && found.Index == l.Index {
			return r, err
		}
	}
	return nil, nil
}
