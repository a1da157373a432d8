package ledger

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Anywhere stands for any host netns in [Ledger.Held], [Ledger.HeldIf], [Cache.Held] and
// [Cache.HeldBy].
var Anywhere netns.ID

// Holds reports whether the attachment of r still holds something of this machine. An attachment of
// an earlier boot holds nothing. An attachment in phase [Freeing] does not count either, because
// only its addresses are still to be freed.
func (l *Ledger) Holds(r *Record) bool { return r.Phase != Freeing && l.OfThisBoot(r) }

// OfHost reports whether the attachment belongs to the host netns host. The netns of an earlier
// boot cannot be recognized, so an attachment of an earlier boot belongs to every host netns.
func (l *Ledger) OfHost(r *Record, host netns.ID) bool {
	return r.HostNetns.Equal(host) || !l.OfThisBoot(r)
}

// Alive reports whether the attachment's pod netns exists.
func (l *Ledger) Alive(r *Record) bool {
	return l.OfThisBoot(r) && netns.Exists(r.Netns.ID, r.Netns.Path)
}

// held returns a function that reports whether the attachment of a record holds something of the
// host netns, and whether keep returns true for that record.
func (l *Ledger) held(host netns.ID, keep func(*Record) bool) func(*Record) bool {
	return func(r *Record) bool {
		return l.Holds(r) && (host == Anywhere || r.HostNetns.Equal(host)) && keep(r)
	}
}

// Held returns the records for which keep returns true, oldest first. It considers only attachments
// of the host netns host that hold something (see [Ledger.Holds]). As [Ledger.List] does, it
// returns an error for each record that cannot be read.
func (l *Ledger) Held(host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	return l.list(l.held(host, keep), false)
}

// HeldIf returns what [Ledger.Held] returns, but faster. wanted must use only the fields above
// Loan, as in [Ledger.ListIf].
func (l *Ledger) HeldIf(host netns.ID, wanted func(*Record) bool) ([]*Record, []error) {
	return l.list(l.held(host, wanted), true)
}

// HeldIn returns the records of the attachments in a pod netns that hold something, for any host
// netns. As [Ledger.ListIf] does, it does not fully decode other records.
func (l *Ledger) HeldIn(pod netns.ID) ([]*Record, []error) {
	return l.HeldIf(Anywhere, func(r *Record) bool { return r.Netns.Equal(pod) })
}

// SinceBoot returns all records of this boot, as [Ledger.ListIf] does. The records may be in any
// phase and of any host netns. They include attachments whose pod has ended, and attachments of
// which only addresses are left.
func (l *Ledger) SinceBoot() ([]*Record, []error) { return l.ListIf(l.OfThisBoot) }

// Held returns the same records as [Ledger.Held].
func (c *Cache) Held(host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	records, errs := c.collect("")
	return only(records, c.ledger.held(host, keep)), errs
}

// HeldBy returns the records of one container, as [Cache.Held] does. It does not read other
// records.
func (c *Cache) HeldBy(container string, host netns.ID, keep func(*Record) bool) ([]*Record, []error) {
	records, errs := c.ofContainer(container)
	return only(records, c.ledger.held(host, keep)), errs
}

// only returns the records for which held returns true.
func only(records []*Record, held func(*Record) bool) []*Record {
	return slices.DeleteFunc(records, func(r *Record) bool { return !held(r) })
}
