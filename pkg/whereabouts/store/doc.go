// Package store is an address store for a whole cluster. It keeps the addresses on the
// cluster's API server, in whereabouts' custom resources. So existing pools and network
// attachments keep working unchanged, and whereabouts itself may write to the same pools.
//
// An address is held by an entry in the IPPool of its pool. Unless
// enable_overlapping_ranges is false, it is also held by an OverlappingRangeIPReservation,
// which keeps the address from the other pools of the same address space. As in
// whereabouts, the entry is written first and the reservation second, and the two are freed
// in the same order. A process that is killed in between leaves only one of them. An entry
// without a reservation is completed by the next ADD of the same owner, or freed by its
// DEL. A reservation without an entry is removed by the reconciler.
//
// There is no lock in the cluster. The patch that adds an entry first tests that the key of
// the entry is null. The patch that removes an entry first tests that the entry is
// unchanged. If two writers patch at the same time, the server refuses one of the patches,
// and that writer reads the pool again and chooses another address. A reservation is
// deleted by its UID.
//
// If many processes patched a pool independently, the server's own retries would starve. So
// the processes of one node take turns. Each process posts its ask into a queue, which is a
// directory of the node. The first process that gets the pool's lock becomes the writer: it
// carries out all waiting asks with one read and one patch. The other processes find their
// answers without a request. Asks of dead processes are not carried out.
//
// [ipam.Claim.SameHost] has no effect here: see [ipamconf.Whereabouts.CheckEntryByEntry].
//
// A new sandbox of a pod takes over the entry of the pod's former sandbox. A late ADD,
// whose sandbox is gone or older than the entry, does not take over an entry. A DEL waits
// only a few seconds for its turn and for the server. If the server does not answer, the
// node remembers that for a time.
//
// All ADDs of a pod's sandbox share a time limit ([Deadline]). With node slices, an ADD
// hands out an address only after the server has confirmed that the slice is this node's.
//
// The node notes each attachment's addresses, so that the attachment's DEL need not read
// the pool. The notes only save time, and may be lost. If a DEL does not reach the server,
// it is written to a journal that survives a reboot. The next writer of the pool, or the
// agent, carries it out.
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
