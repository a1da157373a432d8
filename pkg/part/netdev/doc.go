// Package netdev has the part of an attachment that lends a NIC of the host: the
// netdev moves into the pod netns, and returns as it was.
//
//   - netdev.go: which NIC, whether it may be lent, and the move.
//   - return.go: the way back, and what is restored. It needs the record alone.
//   - names.go: the names of the NIC, if another returned NIC has them on the host.
//   - stacked.go, programs.go: what the pod left on the NIC.
//   - upstream.go: NICs that upstream's host-device lent.
package netdev
