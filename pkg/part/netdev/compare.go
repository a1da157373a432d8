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
const (
	compareWait  = 500 * time.Millisecond
	comparePause = 50 * time.Millisecond
)

// compare compares a NIC that was restored with its snapshot, and returns what is missing and is
// not among the lost. If something is, another NIC that returns at the same time may have
// replaced a route over both, so again restores once more.
func compare(ctx context.Context, releasing *attachment.Releasing, index int, lost []error, again func()) []error {
	var missing []error
	look := func() (none bool, err error) {
		found, err := releasing.Home.Compare(index, releasing.Record.Loan.Snapshot, false)
		missing = slices.DeleteFunc(found, func(e error) bool { return among(lost, e) })
		return !slices.ContainsFunc(missing, mayComeYet), err
	}
	none, err := look()
	if !none && err == nil {
		again()
		bounded, cancel := context.WithTimeout(ctx, compareWait)
		defer cancel()
		if err = wait.Until(bounded, comparePause, look); wait.Ended(bounded, err) {
			err = nil
		}
	}
	if err != nil {
		releasing.Node.LogOf(releasing.Record).Warn("NIC not compared after its return", "err", err)
	}
	return missing
}

// mayComeYet reports whether the kernel may still add what is missing, or another restore: a rule
// comes only from those who deleted it.
func mayComeYet(missing error) bool {
	var l *link.Lost
	return !errors.As(missing, &l) || !strings.HasPrefix(l.What, "rule ")
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
