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
	namesWait = 30 * time.Second // for the lock of names in a conclusive release
)

// makeRoom makes the names that a NIC needs on the host free, or returns a link of the host that
// keeps one of them. If all names are free, makeRoom returns nil. The first of the names is the
// NIC's own name. index is the ifindex of the NIC if the NIC is already on the host, otherwise 0.
//
// When a netns ends, the kernel moves its NIC to the host. There the NIC keeps the name that it had
// in the pod if that name is free, and that may be the name of another NIC that is lent. makeRoom
// renames such a returned NIC. The returned NIC gets its own name back when its own attachment
// ends.
//
// The caller holds the ledger's lock of names, because a NIC must not be renamed while another
// process is giving it its own name.
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
				return taken, name, nil //nolint:nilerr // the caller reports that the name is taken
			}
			continue
		}
		if other == nil || err != nil {
			return taken, name, err
		}
		if changed, err := renameReturned(n, home, taken.Index, other); err != nil || !changed {
			return taken, name, err
		}
		if wait.For(ctx, restorePause) != nil { // removing altnames may need another try
			return taken, name, nil
		}
	}
}

// madeBeside reports whether l is the InfiniBand interface of another port of the HCA whose
// interface is lent by the record. The kernel made l, under a free name, when the RDMA device
// moved.
func madeBeside(r *ledger.Record, l *link.Link) bool {
	id := r.Loan.Identity
	return r.MadeAnew() && l.IsIPoIB() && l.ParentDev == id.ParentDev && l.Identity().Hardware() != id.Hardware()
}

// renameReturned renames a NIC that the kernel returned to the host because its netns ended, and
// removes the altnames that the pod added. The pod chose the NIC's present name. The NIC gets its
// own name back when its attachment ends. changed reports whether the names of the NIC may have
// changed.
func renameReturned(n *attachment.Node, home *netns.Netns, index int, record *ledger.Record) (changed bool, err error) {
	l, err := link.ByIndex(home, index)
	if err != nil {
		return true, nil //nolint:nilerr // the NIC has left
	}
	changed = slices.ContainsFunc(l.AltNames, func(name string) bool { return !slices.Contains(record.Loan.Snapshot.AltNames, name) })
	err = link.KeepAltNames(home, l, record.Loan.Snapshot.AltNames)
	if errors.Is(err, link.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		n.LogOf(record).Warn("cannot remove altnames that the pod gave the NIC", "err", err)
	}
	if l.Name == record.Loan.Name {
		return changed, nil
	}
	name := fmt.Sprintf("dev%d", index) // the kernel would use this name
	for try := 1; try < renameTries; try++ {
		if err = link.Rename(home, index, name); !errors.Is(err, unix.EEXIST) {
			break
		}
		name = fmt.Sprintf("dev%d-%d", index, try) // a pod may have used the last name too
	}
	if errors.Is(err, link.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, failure.From(err, failure.NotReturned, "rename NIC %s, which returned before its attachment ended, to %s", l.Name, name).
			Cure("rename the NIC by hand, then end the attachment again")
	}
	n.LogOf(record).Warn("returned NIC was renamed, because it still had its name in the pod", "name", l.Name, "now", name)
	return true, nil
}

// renameTries bounds the search for an unused name.
const renameTries = 20

// returnedAs returns the record other than record that has the NIC l, or nil if there is none. The
// kernel has moved such a NIC to the host because its netns ended, but its attachment has not
// ended.
func returnedAs(n *attachment.Node, home *netns.Netns, l *link.Link, record *ledger.Record) (*ledger.Record, error) {
	others, _ := n.Ledger.Held(home.ID, func(r *ledger.Record) bool { return r.Key != record.Key && r.LendsNetdev() })
	for _, r := range others { // an attachment with an unreadable record cannot be ended
		found, err := link.Find(home, r.Loan.Identity, r.Loan.Name, r.IfName)
		if err != nil || found != nil && found.Index == l.Index {
			return r, err
		}
	}
	return nil, nil
}
