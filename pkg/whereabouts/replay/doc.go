// Package replay frees the addresses that DELs of a node could not free,
// because the API server did not answer or the node file forbade their
// kubeconfig.
//
// Each entry of a journal is replayed with the kubeconfig that it names, and
// only if the node file still permits that kubeconfig. Entries that cannot be
// freed stay in the journal.
//
// An agent replays while something waits:
//
//	journals := replay.Journals{StateDirs: stateDirs, UserAgent: "rail-agent/v1", NodeFile: nodeFile, Log: log}
//	if waiting, err := journals.Waiting(); err == nil && waiting > 0 {
//		err = journals.Replay(ctx)
//	}
package replay
