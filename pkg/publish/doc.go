// Package publish tells a pod what rails it has: the interfaces, RDMA devices, GIDs and
// GPUs of its attachments, and the settings of NCCL, UCX, NVSHMEM and vLLM that follow
// from them.
//
// [Describe] makes the document of a pod from the ledger, from the node's NICs and from the pod's
// network namespace. Package railinfo has the document, and all other forms, which are made from
// this document. A [Keeper] writes these forms to files for each pod, and writes the files again
// when attachments or GIDs change.
//
// No ADD or DEL waits for this package, and the package writes nothing to the ledger.
//
// To print the settings of NCCL for a pod:
//
//	list, err := inventory.NICs(stateDir)
//	…
//	rails, err := publish.Describe(list, records, railinfo.PodRef{Namespace: "default", Name: "web-0"})
//	…
//	os.Stdout.Write(rails.NCCLConf(railinfo.SettingsOf(list.File)))
package publish
