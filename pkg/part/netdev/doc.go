// Package netdev has the part of an attachment that lends a NIC of the host: the
// netdev moves into the pod netns, and returns as it was.
//
//   - netdev.go: choosing the NIC, the check whether it may be lent, and the move into the pod.
//   - release.go: the return, and the restoring of settings. Both need only the record.
//   - names.go: what to do if another returned NIC has the names of the NIC on the host.
//   - stacked.go, programs.go: links and BPF programs that the pod put on the NIC.
//   - upstream.go: NICs that upstream's host-device lent.
//
// In a plan:
//
//	device := netdev.Part{Conf: conf}
package netdev
