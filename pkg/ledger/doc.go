// Package ledger keeps the records of this node's attachments and loans: one
// JSON file each, written before the first change and removed after the last.
//
// Below the state directory, on tmpfs, are
//
//	attachments/<container id>@<ifname>.json   the records
//	nics/<NIC>                                 a link to the record that holds the NIC
//	locks/…                                    flock(2) files
//
// An attachment's lock is held by an ADD, DEL or sweep for as long as it works
// on the attachment; a NIC's lock only while a loan is decided. A process that
// needs both takes the attachment's first.
//
// The package stores and finds; it does not change links.
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
