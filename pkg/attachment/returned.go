package attachment

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
)

// ReportReturned reports the settings of a returned NIC that could not be restored: lost are parts
// of its configuration, device are settings of the device, and programs are BPF programs of the
// host. ReportReturned logs them, and writes a note for railctl and the agent, which outlives the
// record. Such a loss is not an error, because the NIC is on the host and another try would not
// help.
func (n *Node) ReportReturned(r *ledger.Record, lost []error, device []link.Changed, programs []bpf.Program) {
	var changed []string
	for _, e := range lost {
		n.LogOf(r).Warn("cannot restore a part of the NIC's configuration", "err", e)
		changed = append(changed, e.Error())
	}
	for _, c := range device {
		n.LogOf(r).Warn("cannot restore a setting of the NIC", "setting", c.Setting, "err", c.Err)
		changed = append(changed, c.String())
	}
	for _, p := range programs {
		n.LogOf(r).Warn("BPF program of the host was detached when the NIC was lent", "program", p.String())
		changed = append(changed, p.String()+" of the host was detached when the NIC was lent")
	}
	if len(changed) == 0 {
		return
	}
	key := r.NICName() // for an attachment without a record, or with RDMA devices only
	if r.Loan != nil && r.Loan.NIC != "" {
		key = r.Loan.NIC
	}
	err := n.Ledger.PutReturned(key, ledger.Returned{NIC: r.NICName(), Time: time.Now().UTC(), Holder: r.Holder(), Changed: changed})
	if err != nil {
		n.LogOf(r).Warn("cannot write the note of changed settings", "err", err)
	}
}
