// Package ibaddr has the addresses of RDMA devices and ports as the InfiniBand Architecture Specification defines them:
// GUIDs, GIDs and, of partitions, P_Keys. It reads the tables of a port from sysfs, and notices changes of its GIDs.
//
// It is about a directory of sysfs, and has no namespaces: package rdma finds the directory of a port, and reads again
// if the device was moved meanwhile.
//
//	gid := ibaddr.GIDOf(netip.MustParseAddr("10.0.0.1")) // 0000:0000:0000:0000:0000:ffff:0a00:0001
package ibaddr
