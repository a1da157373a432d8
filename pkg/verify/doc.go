// Package verify measures the rails between nodes, and names the ends of rails that are
// broken or slow.
//
// An end is a rail of a node. [Schedule] divides the pairs of nodes into rounds; in a round
// each node is in one pair at most. [Run] lets a [Prober] on each node measure, in the netns
// that has the node's rails, and [Result.Analyze] judges the measurements. A defect at an end
// makes its paths to all other nodes bad. So a finding names one end if the paths allow that,
// and else all ends that may have the defect.
//
// A prober reads requests and writes answers as JSON lines ([Request], [Answer]);
// pkg/verify/probe implements it. This package uses neither the kernel nor Kubernetes.
package verify
