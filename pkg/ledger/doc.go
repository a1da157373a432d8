// Package ledger keeps the records of this node's attachments and loans: one
// JSON file each, written before the first change and removed after the last.
//
// Below the state directory, on tmpfs, lie
//
//	attachments/<container id>@<ifname>.json   the records
//	nics/<NIC>                                 a link to the record that holds the NIC
//	locks/…                                    flock(2) files
//
// An attachment's lock is held by an ADD, DEL or sweep for as long as it works
// on the attachment; a NIC's lock only while a loan is decided. Whoever needs
// both takes the attachment's first.
//
// The package stores and finds; it changes no link. It imports pkg/link for
// the types in a record, statefile and cnierr.
package ledger
