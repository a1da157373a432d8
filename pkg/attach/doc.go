// Package attach is the life of an attachment: ADD, DEL, CHECK, GC and STATUS
// as transactions over netconf, nic, link and ledger.
//
// One pipeline serves every plugin that gives a pod an interface. What differs
// is the provision: host-device lends a NIC of the host ([LendNIC]), macvlan
// makes a child of one ([MakeChild]). The plugin rdma gives none: chained behind
// another, it adds the RDMA devices of that one's NIC to its attachment
// ([Chained]).
//
// ADD writes a record before the first change and pushes the undo of every
// step on one stack. DEL, GC and the sweep at the beginning of every ADD need
// nothing but the record. The record is removed last, so whatever kills a
// process leaves one that the next of them can finish.
package attach
