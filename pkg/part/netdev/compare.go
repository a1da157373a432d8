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

// comparison compares a NIC that was restored with its snapshot.
type comparison struct {
	releasing *attachment.Releasing
	index     int
	lost      []error // what could not be restored
	removed   bool    // somebody has removed an address since

	missing []error   // what the NIC lacks beside the lost; if an address was removed, all that it lacks
	end     time.Time // of the wait for a manager
}

// compare compares a NIC with its snapshot, and returns what is lost or missing. If something is,
// it waits for that, and calls again, which restores once more and returns what is lost then:
// another NIC that returned at the same time may have replaced a route over both, or a network
// manager has removed what it found. A manager comes first: an address that is restored while
// NetworkManager removes those that it found keeps it from its own profile.
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

// settle waits until nothing is missing, or has been for too long. It reports whether nothing is.
func (c *comparison) settle(ctx context.Context) (none bool, err error) {
	since := time.Now() // an address was missing last
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

// check compares the NIC once. It reports whether an address is gone that was restored.
func (c *comparison) check() (gone bool, err error) {
	found, err := nicstate.Compare(c.releasing.Home, c.index, c.releasing.Record.Loan.Snapshot, false)
	c.missing = notAmong(found, c.lost)
	if gone = slices.ContainsFunc(c.missing, isAddress); gone {
		c.removed = true
	}
	if c.removed {
		c.missing = found // a manager may bring what is lost, too
	}
	return gone, err
}

// mayComeYet reports whether the kernel may still add what is missing, or another restore: a rule
// comes only from those who deleted it.
func mayComeYet(missing error) bool {
	var l *nicstate.Lost
	return !errors.As(missing, &l) || !strings.HasPrefix(l.What, "rule ")
}

// isAddress reports whether an address is missing.
func isAddress(missing error) bool {
	var l *nicstate.Lost
	return errors.As(missing, &l) && strings.HasPrefix(l.What, "address ")
}

// notAmong returns the errors that are about other objects than the lost.
func notAmong(found, lost []error) []error {
	return slices.DeleteFunc(slices.Clone(found), func(e error) bool { return among(lost, e) })
}

// among reports whether one of the lost is the object that err is about.
func among(lost []error, err error) bool {
	var missing *nicstate.Lost
	return errors.As(err, &missing) && slices.ContainsFunc(lost, func(e error) bool {
		var known *nicstate.Lost
		return errors.As(e, &known) && known.What == missing.What
	})
}

// CompareLater compares the NIC of an attachment that ended some time ago with its record once
// more: udev applies its .link files to a NIC that returns, and a daemon may remove what is not
// its own. It adds what differs to the NIC's note, and reports whether there was anything new.
// The NIC may have been lent again since, or be gone: then nothing is compared.
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
	if l.IsUp() || !s.Up { // otherwise the routes are gone with that
		missing, err := nicstate.Compare(n.Netns, l.Index, s, true)
		if err != nil {
			return false, err
		}
		changed = append(changed, missing...)
	}
	if lentAgain(n, r) { // while it was compared
		return false, nil
	}
	changed = slices.DeleteFunc(changed, func(e error) bool { return noted(n, r, e) })
	n.ReportReturned(r, changed, nil, nil)
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
	var missing *nicstate.Lost
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
