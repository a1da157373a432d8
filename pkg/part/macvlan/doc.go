// Package macvlan has the part of an attachment that makes a macvlan for the pod, on a
// NIC that many pods share. This package calls the shared NIC the parent. The configuration
// calls it the master, as upstream's plugin does.
//
//   - macvlan.go makes the macvlan. TakeOver deletes a macvlan of upstream's plugin,
//     which has no record.
//   - release.go deletes the macvlan of a record.
//
// In a plan:
//
//	child := macvlan.Part{Conf: conf}
package macvlan
