package ledger

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// Proves reports whether r's loan is as [Ledger.Put] recorded it, and was not
// edited to name another NIC: the mark on the NIC leads to r, and all parts of
// r that name the NIC agree. It returns true if no netdev can be moved: under a
// userspace driver, in phase [Freeing], in which another may have the NIC, and
// after a boot.
func (l *Ledger) Proves(r *Record) bool {
	if r.Loan == nil || r.Loan.Driver != "" || r.Phase == Freeing || !l.OfThisBoot(r) {
		return true
	}
	target, err := l.nics.Readlink(statefile.Name(r.Loan.NIC))
	return err == nil && target == recordName(r.Key) && r.Loan.NIC == r.loanKey() &&
		r.Loan.Snapshot != nil && r.Loan.Snapshot.Name == r.Loan.Name
}

// loanKey returns nic.NIC.Key of the NIC in the record.
func (r *Record) loanKey() string {
	id := r.Loan.Identity
	switch {
	case id.ParentDev == "":
		return fmt.Sprintf("%s %s", r.HostNetns.NetnsID, r.Loan.Name)
	case id.PermMAC == "":
		return fmt.Sprintf("%s %s %s", id.ParentBus, id.ParentDev, r.Loan.Name)
	default:
		return fmt.Sprintf("%s %s %s", id.ParentBus, id.ParentDev, id.PermMAC)
	}
}
