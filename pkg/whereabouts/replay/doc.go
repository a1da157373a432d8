// Package replay frees the addresses that DELs of a node could not free, because the API
// server did not answer or the node file forbade the kubeconfig.
//
// Each entry of a journal is replayed with the kubeconfig that the entry names, and only if
// the node file permits that kubeconfig now. An entry whose address cannot be freed stays
// in the journal.
//
// An agent replays the journals while they have entries:
//
//	journals := replay.Journals{StateDirs: stateDirs, UserAgent: "rail-agent/v1", NodeFile: nodeFile, Log: log}
//	if waiting, err := journals.Waiting(); err == nil && waiting > 0 {
//		err = journals.Replay(ctx)
//	}
package replay
