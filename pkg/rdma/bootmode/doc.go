// Package bootmode reads and sets the RDMA mode in which a node boots. The mode is set in a file of
// modprobe(8), or by an argument of the kernel if the system has no such files. The package needs
// neither an RDMA core nor a NIC.
//
//	c := bootmode.Boot{}.Change(rdma.Exclusive, true, false) // from the next boot on
package bootmode
