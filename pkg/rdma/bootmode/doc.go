// Package bootmode reads and sets the RDMA mode in which a node boots: a file of modprobe(8),
// or an argument of the kernel where the system has no such files. It needs no RDMA core, and
// no NIC.
//
//	c := bootmode.Boot{}.Change(rdma.Exclusive, true, false) // from the next boot on
package bootmode
