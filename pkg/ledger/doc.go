// Package ledger keeps the records of this node's attachments. Each record is one JSON file. It is
// written before the first change on the host, and removed after the last change was undone.
//
// The state directory is on tmpfs. It contains
//
//	attachments/<container id>@<ifname>.json   the records
//	nics/<NIC>                                 a link to the record that holds the NIC
//	locks/…                                    flock(2) files
//
// An ADD, DEL or sweep holds the lock of an attachment for as long as it works on the attachment.
// The lock of a NIC is held only while a process decides on a loan. A process that needs both locks
// takes the attachment's lock first.
//
// The package stores and finds records. It does not change links.
//
// To look at the attachments of a node:
//
//	l, err := ledger.Open("/run/rail-cni")
//	if err != nil {
//		return err
//	}
//	defer l.Close()
//	records, errs := l.Held(host, func(r *ledger.Record) bool { return r.Loan != nil })
package ledger
