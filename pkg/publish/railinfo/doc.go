// Package railinfo is what a pod is told of its rails: the document [Rails], and all forms that are made of it. Those are
// the settings of NCCL, UCX, NVSHMEM and vLLM as variables ([Rails.Env]) and as files ([Rails.NCCLConf], [Rails.EnvSh]),
// NCCL's topology ([Rails.TopoXML]) and the annotation ([Rails.Compact]).
//
// It reads nothing of NICs and pods; package publish does, and makes the document. Only the topology has facts of the
// node besides: those of its PCI tree and CPUs.
//
//	os.Stdout.Write(rails.NCCLConf(railinfo.SettingsOf(file)))
package railinfo
