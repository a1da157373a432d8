// Package verify measures the rails between nodes, and names the ends of rails that are
// broken or slow.
//
// An end is a rail of a node. [Schedule] divides the pairs of nodes into rounds in which no
// node is busy twice. [Run] lets a [Prober] on each node measure, in the netns that has the
// node's rails, and [Result.Analyze] judges what they measured. A bad end is bad to all other
// nodes, so a finding is about an end wherever the paths allow to tell, and else about the
// ends that it may be.
//
// A prober reads requests and writes answers as JSON lines ([Request], [Answer]); it is
// pkg/verify/probe. This package imports neither the kernel nor Kubernetes.
package verify
