// Package rdmadev has the parts of an attachment that give a pod RDMA devices:
// [Moving] those of a NIC that is lent, [Shared] the use of that of a NIC that stays
// on the host, [Chained] those of an interface that another plugin made. [GIDs] waits
// for the GIDs of the interface's addresses.
//
// Whether devices move is decided by the machine's RDMA mode: in exclusive mode they
// do, in shared mode every network namespace sees them all.
package rdmadev
