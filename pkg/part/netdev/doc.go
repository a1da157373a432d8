// Package netdev has the part of an attachment that lends a NIC of the host: the
// netdev moves into the pod netns, and returns as it was.
//
//   - netdev.go: the choice of the NIC, whether it may be lent, and the move.
//   - release.go: the return, and what is restored. It needs only the record.
//   - names.go: the names of the NIC, if another returned NIC has them on the host.
//   - stacked.go, programs.go: links and programs of the pod on the NIC.
//   - upstream.go: NICs that upstream's host-device lent.
//
// In a plan:
//
//	device := netdev.Part{Conf: conf}
package netdev
