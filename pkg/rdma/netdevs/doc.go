// Package netdevs finds the interfaces of RDMA ports, as ibdev2netdev(8) of MLNX_OFED shows them. The kernel names that of
// an Ethernet port; those of an InfiniBand port are found by their addresses, which have its GUID.
//
//	pairs, err := netdevs.Pairs(ns)
package netdevs
