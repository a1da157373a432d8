// Package pods runs the probers of package verify in a cluster, in one pod on each node. The pod
// gets all rails of the node from the users' own NetworkAttachmentDefinitions.
//
// [Start] creates a Job for each node, waits for the pods, and attaches to the programs in the pods. The protocol of
// package verify runs over stdin and stdout. No pod and no Job stays, even if this process is killed. The program in a
// pod ends when its stdin ends, or when it has had no request for the sum of Options.Within and [Idle]. The container
// has stdinOnce, so its stdin ends with the connection. Then the pod ends, its NICs return, and Kubernetes deletes the
// Job with the pod. [Fleet.Close] deletes the Jobs immediately, and waits until they are gone.
//
// Texts from pods and their events may come from a hostile user. So their size is limited, and
// nothing in them is executed.
package pods
