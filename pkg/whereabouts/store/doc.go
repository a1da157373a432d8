// Package store is the address store of a cluster: the cluster's own API
// server and etcd, through whereabouts' custom resources, so that pools and
// network attachments which exist already go on unchanged, and whereabouts
// itself may write to the same pools.
//
// An address is held by two objects: an entry in its IPPool, and, unless
// enable_overlapping_ranges is false, an OverlappingRangeIPReservation that
// keeps it from the other pools of its address space. The entry is written
// first and the reservation second, as whereabouts writes them; they are freed
// in the same order. A process that is killed between the two leaves an entry
// without a reservation, which the next ADD or DEL of the same owner finishes,
// or a reservation without an entry, which the reconciler removes.
//
// There is no lock in the cluster. An entry is added by a patch
// that first tests that its key is null, and removed by one that first tests
// that it is still the same: of two writers one is refused, reads again and
// chooses another address. A reservation is deleted by its UID.
//
// A pool that many patch blindly makes the server's own retries starve. So
// the processes of one node take turns: each posts what it asks for into a
// queue (a directory of the node), and the first to get the pool's lock is the
// writer: it answers all that are waiting with one read and one patch, and the
// others find their answers without having talked to the server at all. What
// is posted by a process that died is not carried out.
//
// A pod's new sandbox takes over the entry of its former one. A late ADD does not:
// its sandbox is gone, or older than the entry. A DEL waits only seconds for its
// turn and for the server, and the node remembers a server that was silent.
//
// What an attachment got is noted on the node, so that its DEL needs no read:
// the notes only make things quicker, and every one may be lost. A DEL that
// does not reach the server is written into a journal that outlives a reboot,
// and is carried out by the next call that is the writer of its pool, or by the agent.
package store
