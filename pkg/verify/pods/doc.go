// Package pods runs the probers of package verify in a cluster: a pod for each node, which has
// all rails of the node by the users' own NetworkAttachmentDefinitions.
//
// [Start] makes a Job for each node, waits for the pods, and attaches to their programs: stdin
// and stdout carry the protocol of package verify. Nothing stays behind, however this process
// ends. The program in a pod ends when its stdin does, which the container's stdinOnce ties to
// the connection, or when it was not asked for [Idle]. The pod then ends, its NICs return, and
// Kubernetes deletes the Job with its pod. [Fleet.Close] does so at once, and waits for it.
//
// What pods and their events say may come from a hostile user: it is bounded, and only read.
package pods
