// Package publish tells a pod what rails it has: the interfaces, RDMA devices, GIDs and
// GPUs of its attachments, and the settings of NCCL, UCX, NVSHMEM and vLLM that follow
// from them.
//
// [Describe] makes the document [Rails] of a pod from the ledger, from the node's NICs and from the
// pod's network namespace. All other forms are made from this document: [Rails.Env],
// [Rails.NCCLConf], [Rails.EnvSh], and [Rails.TopoXML] with the node's PCI tree. A [Keeper] writes
// these forms to files for each pod, and writes the files again when attachments or GIDs change.
//
// No ADD or DEL waits for this package, and the package writes nothing to the ledger.
//
// To print the settings of NCCL for a pod:
//
//	list, err := inventory.NICs(stateDir)
//	…
//	rails, err := publish.Describe(list, records, publish.PodRef{Namespace: "default", Name: "web-0"})
//	…
//	os.Stdout.Write(rails.NCCLConf(publish.SettingsOf(list.File)))
package publish
