// Package store is the address store of a cluster: it uses the cluster's API
// server and etcd, through whereabouts' custom resources. So existing pools and
// network attachments keep working unchanged, and whereabouts itself may write
// to the same pools.
//
// Two objects hold an address: an entry in its IPPool, and, unless
// enable_overlapping_ranges is false, an OverlappingRangeIPReservation that
// keeps it from the other pools of its address space. The entry is written
// first and the reservation second, as whereabouts writes them; they are freed
// in the same order. A process that is killed between the two leaves an entry
// without a reservation, which the next ADD or DEL of the same owner finishes,
// or a reservation without an entry, which the reconciler removes.
//
// There is no lock in the cluster. An entry is added by a patch that first
// tests that its key is null, and removed by one that first tests that it is
// unchanged: of two writers one is refused, reads again and chooses another
// address. A reservation is deleted by its UID.
//
// If many processes patch a pool independently the server's own retries starve.
// So the processes of one node take turns: each posts its ask into a queue (a
// directory of the node), and the first to get the pool's lock is the writer:
// it answers all waiting asks with one read and one patch, and the others find
// their answers without a request. Asks of dead processes are not carried out.
//
// [ipam.Claim.SameHost] has no effect here: see [netconf.Whereabouts.CheckEntryByEntry].
//
// A pod's new sandbox takes over the entry of its former one. A late ADD does
// not: its sandbox is gone, or older than the entry. A DEL waits only seconds
// for its turn and for the server, and the node remembers a silent server.
//
// All ADDs of a pod's sandbox share a time ([Deadline]). With node slices an ADD
// hands out an address only after the server has confirmed that the slice is
// this node's.
//
// The node notes each attachment's addresses, so that its DEL needs no read:
// the notes only save time, and may be lost. A DEL that does not reach the
// server is written to a journal that survives a reboot. The next writer of its
// pool, or the agent, carries it out.
//
// To assign an address of each claim:
//
//	s, err := store.New(store.Options{Client: client, StateDir: "/run/rail-cni", JournalDir: journal})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	addresses, err := s.Allocate(ctx, owner, claims)
package store
