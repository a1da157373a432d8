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
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// compareWait bounds the wait for what is missing right after a return, because the kernel adds
// some IPv6 routes in a worker. Nearly always nothing is missing.
//
// ownerWait bounds the wait while an address is missing. In that case a network manager has
// probably removed the address, and will configure the NIC. NetworkManager takes a second for that.
//
// calm is the time after which a NIC that was restored a second time is compared again, because
// NetworkManager first lists what it finds on a NIC, and then removes what is on its list.
const (
	compareWait  = 200 * time.Millisecond
	ownerWait    = 5 * time.Second
	calm         = 300 * time.Millisecond
	comparePause = 50 * time.Millisecond
)

// comparison is the state of comparing a restored NIC with its snapshot.
type comparison struct {
	releasing *attachment.Releasing
	index     int
	lost      []error // what could not be restored
	removed   bool    // somebody has removed an address since the NIC was restored

	missing []error   // what the NIC lacks except lost; or all that it lacks if an address was removed
	end     time.Time // of the wait for a manager
}

// compare compares a NIC with its snapshot, and returns what is lost or missing. If something is
// lost or missing, compare first waits for it. Then it calls again, which restores the NIC once
// more and returns what is lost after that. Restoring again helps if another NIC returned at the
// same time and replaced a route over both NICs, or if a network manager has removed what it found.
// compare waits first, so that a network manager can finish. If an address is restored while
// NetworkManager removes the addresses that it found, NetworkManager does not apply its own
// profile.
func (c *comparison) compare(ctx context.Context, again func() (lost []error)) []error {
	c.end = time.Now().Add(ownerWait)
	none, err := c.settle(ctx)
	for try := 1; (!none || c.removed && len(c.lost) > 0) && err == nil && try < restoreTries; try++ {
		c.lost, c.removed = again(), false
		if none, err = c.settle(ctx); none && err == nil {
			_ = wait.For(ctx, calm)
			none, err = c.settle(ctx)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		c.releasing.Node.LogOf(c.releasing.Record).Warn("cannot compare the returned NIC with its snapshot", "err", err)
	}
	return slices.Concat(c.lost, notAmong(c.missing, c.lost))
}

// settle waits until nothing is missing, or until something has been missing for too long. none
// reports whether nothing is missing.
func (c *comparison) settle(ctx context.Context) (none bool, err error) {
	since := time.Now() // the last time that an address was missing
	err = wait.Until(ctx, comparePause, func() (bool, error) {
		gone, err := c.check()
		if gone {
			since = time.Now()
		}
		none = err == nil && !slices.ContainsFunc(c.missing, mayComeYet)
		return none || gone && since.After(c.end) || time.Since(since) > compareWait, err
	})
	if wait.Ended(ctx, err) {
		err = nil
	}
	return none, err
}

// check compares the NIC with its snapshot. gone reports whether an address that had been restored
// is gone.
func (c *comparison) check() (gone bool, err error) {
	found, err := nicstate.Compare(c.releasing.Home, c.index, c.releasing.Record.Loan.Snapshot, false)
	c.missing = notAmong(found, c.lost)
	if gone = slices.ContainsFunc(c.missing, isAddress); gone {
		c.removed = true
	}
	if c.removed {
		c.missing = found // a network manager may add what was lost, too
	}
	return gone, err
}

// mayComeYet reports whether the kernel, or a restore of another NIC, may still add what is
// missing. A rule can be added again only by the program that deleted the rule.
func mayComeYet(missing error) bool {
	var l *nicstate.Lost
	return !errors.As(missing, &l) || !strings.HasPrefix(l.What, "rule ")
}

// isAddress reports whether missing is about an address.
func isAddress(missing error) bool {
	var l *nicstate.Lost
	return errors.As(missing, &l) && strings.HasPrefix(l.What, "address ")
}

// notAmong returns the errors in found whose objects are not among lost.
func notAmong(found, lost []error) []error {
	return slices.DeleteFunc(slices.Clone(found), func(e error) bool { return among(lost, e) })
}

// among reports whether lost has an error about the same object as err.
func among(lost []error, err error) bool {
	var missing *nicstate.Lost
	return errors.As(err, &missing) && slices.ContainsFunc(lost, func(e error) bool {
		var known *nicstate.Lost
		return errors.As(e, &known) && known.What == missing.What
	})
}

// CompareLater compares the NIC of an attachment that ended some time ago once more with the record
// of the attachment. This is needed because udev applies its .link files to a NIC that returns, and
// a daemon may remove what it did not configure. CompareLater adds what differs to the NIC's note.
// found reports whether something new differs. If the NIC has been lent again or is gone,
// CompareLater compares nothing.
func CompareLater(n *attachment.Node, r *ledger.Record) (found bool, err error) {
	s := r.Loan.Snapshot
	l, err := link.Find(n.Netns, r.Loan.Identity, append([]string{s.Name}, s.AltNames...)...)
	if err != nil || l == nil {
		return false, err
	}
	changed, err := nicstate.CompareSettings(n.Netns, l, s)
	if err != nil {
		return false, err
	}
	if l.IsUp() || !s.Up { // otherwise the NIC was set down, and its routes are gone
		missing, err := nicstate.Compare(n.Netns, l.Index, s, true)
		if err != nil {
			return false, err
		}
		changed = append(changed, missing...)
	}
	if lentAgain(n, r) { // while the NIC was being compared
		return false, nil
	}
	changed = slices.DeleteFunc(changed, func(e error) bool { return noted(n, r, e) })
	n.ReportReturned(r, changed, nil, nil)
	return len(changed) > 0, nil
}

// lentAgain reports whether an attachment has the NIC of r, the record of an attachment that has
// ended.
func lentAgain(n *attachment.Node, r *ledger.Record) bool {
	holder, err := n.Ledger.HolderOf(r.Loan.NIC)
	return err != nil || holder != nil
}

// noted reports whether a note that was written after the NIC was lent already has the object of
// err as not restored.
func noted(n *attachment.Node, r *ledger.Record, err error) bool {
	var missing *nicstate.Lost
	if !errors.As(err, &missing) {
		return false
	}
	notes, _ := n.Ledger.Returned() // nothing is known about a note that cannot be read
	return slices.ContainsFunc(notes, func(note *ledger.Returned) bool {
		return note.NIC == r.NICName() && note.Time.After(r.Created) && slices.ContainsFunc(note.Changed, func(c string) bool {
			return strings.HasPrefix(c, fmt.Sprintf("%s: ", missing.What))
		})
	})
}
