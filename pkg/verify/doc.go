// Package verify measures the rails between nodes, and names the ends of rails that are
// broken or slow.
//
// An end is a rail of a node. [Schedule] divides the pairs of nodes into rounds. In a round, each
// node is in at most one pair. [Run] lets a [Prober] on each node measure in the netns that has the
// node's rails. [Result.Analyze] judges the measurements. A defect at an end makes the end's paths
// to all other nodes bad. So a finding names one end if the paths show which end it is. Otherwise
// it names all ends that may have the defect.
//
// A prober reads requests and writes answers as JSON lines ([Request], [Answer]). The package
// pkg/verify/probe implements a prober. This package itself calls neither the kernel nor
// Kubernetes.
package verify
