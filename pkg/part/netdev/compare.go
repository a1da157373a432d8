package netdev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/part/loan"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// compareWait bounds the wait for what is missing right after a return: the kernel adds some
// routes of IPv6 in a worker. Nearly always nothing is missing.
//
// ownerWait bounds the wait while an address is missing: probably a network manager has removed
// it, and will configure the NIC. NetworkManager takes a second.
//
// calm is the time after which a NIC that was restored once more is compared once more:
// NetworkManager takes a list of what it finds, and removes that.
const (
	compareWait  = 200 * time.Millisecond
	ownerWait    = 5 * time.Second
	calm         = 300 * time.Millisecond
	comparePause = 50 * time.Millisecond
)

// compare compares a NIC that was restored with its snapshot, and returns what is lost or missing.
// lost is what could not be restored; removed says that somebody has removed an address meanwhile.
// If more is missing, compare waits for it, and calls again, which restores once more and returns
// what is lost then. It is missing because another NIC that returned at the same time has replaced
// a route over both, or because a network manager has removed it. A manager comes first: an
// address that is restored while NetworkManager removes those that it found keeps it from its own
// profile.
func compare(ctx context.Context, releasing *attachment.Releasing, index int, lost []error, removed bool, again func() (lost []error)) []error {
	var missing []error
	end := time.Now().Add(ownerWait)
	settle := func() (none bool, err error) {
		last := time.Now() // an address was missing
		waitErr := wait.Until(ctx, comparePause, func() (bool, error) {
			var found []error
			found, err = releasing.Home.Compare(index, releasing.Record.Loan.Snapshot, false)
			missing = notAmong(found, lost)
			now, gone := time.Now(), slices.ContainsFunc(missing, isAddress)
			if gone {
				removed, last = true, now
			}
			if removed {
				missing = found // a manager may bring what is lost, too
			}
			none = !slices.ContainsFunc(missing, mayComeYet)
			return none || gone && now.After(end) || !gone && now.Sub(last) > compareWait, err
		})
		if wait.Ended(ctx, waitErr) {
			return none, nil
		}
		return none, waitErr
	}
	none, err := settle()
	for try := 1; (!none || removed && len(lost) > 0) && err == nil && try < restoreTries; try++ {
		lost, removed = again(), false
		if none, err = settle(); none && err == nil {
			_ = wait.For(ctx, calm)
			none, err = settle()
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		releasing.Node.LogOf(releasing.Record).Warn("NIC not compared after its return", "err", err)
	}
	return slices.Concat(lost, notAmong(missing, lost))
}

// mayComeYet reports whether the kernel may still add what is missing, or another restore: a rule
// comes only from those who deleted it.
func mayComeYet(missing error) bool {
	var l *link.Lost
	return !errors.As(missing, &l) || !strings.HasPrefix(l.What, "rule ")
}

// addressRemoved reports whether a NIC lacks an address that is not among the lost: somebody has
// removed it since it was restored.
func addressRemoved(releasing *attachment.Releasing, index int, lost []error) bool {
	found, err := releasing.Home.Compare(index, releasing.Record.Loan.Snapshot, false)
	return err == nil && slices.ContainsFunc(notAmong(found, lost), isAddress)
}

// isAddress reports whether an address is missing.
func isAddress(missing error) bool {
	var l *link.Lost
	return errors.As(missing, &l) && strings.HasPrefix(l.What, "address ")
}

// notAmong returns the errors that are about other objects than the lost.
func notAmong(found, lost []error) []error {
	return slices.DeleteFunc(slices.Clone(found), func(e error) bool { return among(lost, e) })
}

// among reports whether one of the lost is the object that err is about.
func among(lost []error, err error) bool {
	var missing *link.Lost
	return errors.As(err, &missing) && slices.ContainsFunc(lost, func(e error) bool {
		var known *link.Lost
		return errors.As(e, &known) && known.What == missing.What
	})
}

// CompareLater compares the NIC of an attachment that has ended some time ago with its record once
// more: udev applies its .link files to a NIC that returns, and a daemon may remove what is not
// its own. It adds what differs to the NIC's note, and reports whether there was anything new.
// The NIC may have been lent again since, or be gone: then nothing is compared.
func CompareLater(n *attachment.Node, r *ledger.Record) (found bool, err error) {
	s := r.Loan.Snapshot
	l, err := n.Netns.Find(r.Loan.Identity, append([]string{s.Name}, s.AltNames...)...)
	if err != nil || l == nil {
		return false, err
	}
	changed, err := n.Netns.Changed(l, s)
	if err != nil {
		return false, err
	}
	if l.IsUp() || !s.Up { // otherwise the routes are gone with that
		missing, err := n.Netns.Compare(l.Index, s, true)
		if err != nil {
			return false, err
		}
		changed = append(changed, missing...)
	}
	if lentAgain(n, r) { // while it was compared
		return false, nil
	}
	changed = slices.DeleteFunc(changed, func(e error) bool { return noted(n, r, e) })
	loan.Report(n, r, changed, nil, nil)
	return len(changed) > 0, nil
}

// lentAgain reports whether an attachment has the NIC of the record, which has ended.
func lentAgain(n *attachment.Node, r *ledger.Record) bool {
	holder, err := n.Ledger.HolderOf(r.Loan.NIC)
	return err != nil || holder != nil
}

// noted reports whether a note says already, since the NIC was lent, that the object of err was not
// restored.
func noted(n *attachment.Node, r *ledger.Record, err error) bool {
	var missing *link.Lost
	if !errors.As(err, &missing) {
		return false
	}
	notes, _ := n.Ledger.Returned() // of one that cannot be read nothing is known
	return slices.ContainsFunc(notes, func(note *ledger.Returned) bool {
		return note.NIC == r.NICName() && note.Time.After(r.Created) && slices.ContainsFunc(note.Changed, func(c string) bool {
			return strings.HasPrefix(c, fmt.Sprintf("%s: ", missing.What))
		})
	})
}
