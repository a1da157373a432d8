// Package rdmadev has the parts of an attachment that handle its RDMA devices:
//
//   - [Moving]: the devices of a NIC that is lent.
//   - [Shared]: the device of a NIC that stays on the host.
//   - [Chained]: the devices of the NIC behind an interface that another plugin made.
//   - [GIDs] waits for the GIDs of the interface's addresses.
//   - [Any] releases the devices of any record.
//
// The move to the pod is in move.go. The return is in release.go.
//
// The RDMA mode of the machine decides whether devices move. In exclusive mode the devices
// move. In shared mode they do not move, because every network namespace sees all devices.
//
// In a plan:
//
//	rdma := rdmadev.Moving{Conf: conf.RDMA, Allow: conf.Allow}
package rdmadev
