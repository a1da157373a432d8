package ledger

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Anywhere stands for any host netns in [Ledger.Held], [Ledger.HeldIf], [Cache.Held] and
// [Cache.HeldBy].
var Anywhere netns.ID

// Holds reports whether the attachment of r still holds something of this machine. One of an
// earlier boot does not, and in phase [Freeing] only its addresses are still to be freed.
func (l *Ledger) Holds(r *Record) bool { return r.Phase != Freeing && l.OfThisBoot(r) }

// OfHost reports whether the attachment belongs to a host netns. The netns of an earlier boot
// cannot be known, so an attachment of that time belongs to any.
func (l *Ledger) OfHost(r *Record, host netns.ID) bool {
	return r.HostNetns.Equal(host) || !l.OfThisBoot(r)
}

// Alive reports whether the attachment's pod netns exists.
func (l *Ledger) Alive(r *Record) bool {
	return l.OfThisBoot(r) && netns.Exists(r.Netns.ID, r.Netns.Path)
}

// held returns a function that reports whether the attachment of a record holds something of the
// host netns and keep returns true for the record.
func (l *Ledger) held(host netns.ID, keep func(*Record) bool) func(*Record) bool {
	return func(r *Record) bool {
		return l.Holds(r) && (host == Anywhere || r.HostNetns.Equal(host)) && keep(r)
	}
}

// Held returns the records of the attachments of a host netns that hold something (see
// [Ledger.Holds]) and for which keep returns true, oldest first. Like [Ledger.List] it returns an
// error for each record that cannot be read.
func (l *Ledger) Held(host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	return l.list(l.held(host, keep), false)
}

// HeldIf is [Ledger.Held], but wanted must use only the fields above Loan, as in
// [Ledger.ListIf].
func (l *Ledger) HeldIf(host netns.ID, wanted func(*Record) bool) ([]*Record, []error) {
	return l.list(l.held(host, wanted), true)
}

// HeldIn returns the records of the attachments in a pod netns that hold something, of any host
// netns. It decodes no others, as [Ledger.ListIf].
func (l *Ledger) HeldIn(pod netns.ID) ([]*Record, []error) {
	return l.HeldIf(Anywhere, func(r *Record) bool { return r.Netns.Equal(pod) })
}

// SinceBoot returns the records of this boot, in any phase and of any host netns, as
// [Ledger.ListIf] does. They include attachments whose pod has ended, or of which only addresses
// are left.
func (l *Ledger) SinceBoot() ([]*Record, []error) { return l.ListIf(l.OfThisBoot) }

// Held returns what [Ledger.Held] does.
func (c *Cache) Held(host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	records, errs := c.collect("")
	return only(records, c.ledger.held(host, keep)), errs
}

// HeldBy is [Cache.Held] for one container. It reads no other record.
func (c *Cache) HeldBy(container string, host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	records, errs := c.ofContainer(container)
	return only(records, c.ledger.held(host, keep)), errs
}

// only returns the records for which held returns true.
func only(records []*Record, held func(*Record) bool) []*Record {
	return slices.DeleteFunc(records, func(r *Record) bool { return !held(r) })
}
