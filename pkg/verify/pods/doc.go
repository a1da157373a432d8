// Package pods runs the probers of package verify in a cluster: a pod for each node. The pod
// has all rails of the node, by the users' own NetworkAttachmentDefinitions.
//
// [Start] creates a Job for each node, waits for the pods, and attaches to their programs: stdin
// and stdout carry the protocol of package verify. No pod or Job stays, however this process
// ends. The program in a pod ends when its stdin ends, or when it had no request for the sum of
// Options.Within and [Idle]. Because of the container's stdinOnce, stdin ends with the connection. The pod then
// ends, its NICs return, and Kubernetes deletes the Job with its pod. [Fleet.Close] deletes the
// Jobs at once, and waits until they are gone.
//
// Texts from pods and their events may come from a hostile user: their size is bounded, and
// nothing in them is executed.
package pods
