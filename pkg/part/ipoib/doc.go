// Package ipoib has the part of an attachment that makes a child of an InfiniBand interface for the
// pod. This way many pods share one port. If the network names a partition, the child is in that
// partition.
//
//   - ipoib.go makes the child.
//   - release.go deletes the child of a record.
//
// In a plan:
//
//	child := ipoib.Part{Conf: conf}
package ipoib
