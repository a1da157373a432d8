package attach

import (
	"errors"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// errUnbelieved marks a record that reads well, and that no ADD wrote as it is.
var errUnbelieved = errors.New("the record was edited")

// believe fails when acting upon the record would touch what was never lent to
// its attachment: it names another NIC than the one it was made for, or the host
// as the pod. Nothing of such a record is used, neither its NIC nor the program
// that it names.
func (n *Node) believe(r *ledger.Record) error {
	host := r.Netns.Equal(r.HostNetns.NetnsID) || r.Netns.Equal(n.Host.Netns.ID)
	moved := r.Loan != nil && r.Loan.Driver == "" && r.Phase != ledger.Freeing && n.Ledger.OfThisBoot(r)
	if !host && (!moved || n.Ledger.Proves(r)) {
		return nil
	}
	return cnierr.Wrap(errUnbelieved, cnierr.BadRecord, "compare it with `ip link`; a DEL of the attachment keeps it aside and goes by the interface itself",
		"the NIC %s was never lent to %s", r.NICName(), r.Holder())
}
