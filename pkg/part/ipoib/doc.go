// Package ipoib has the part of an attachment that makes a child of an InfiniBand interface for the pod, so
// that many pods share one port, each in a partition of its own if the network names one.
//
//   - ipoib.go makes the child.
//   - release.go deletes the child of a record.
//
// In a plan:
//
//	child := ipoib.Part{Conf: conf}
package ipoib
