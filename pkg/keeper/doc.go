// Package keeper keeps a node's NICs: it ends the attachments whose pod netns is gone as soon as
// the kernel has returned their NICs to the host, moves RDMA devices that drivers re-create into
// their pods again, announces addresses whose carrier came late, and reports NICs that a pod lacks
// or that were not returned as they were.
//
// It has no state of its own: the ledger contains the work, so it may be killed at any instant, run
// several times, or not at all. It ends attachments with pkg/attachment, under the lock that the
// plugins take, so it never disturbs an ADD or DEL.
//
//	k, err := keeper.New(keeper.Options{StateDirs: []string{"/run/rail-cni"}, Log: log})
//	a.Add(k.Component()) // an agent.Agent
package keeper
