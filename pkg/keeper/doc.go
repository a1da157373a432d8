// Package keeper keeps a node's NICs:
//
//   - It ends attachments whose pod netns is gone, as soon as the kernel has returned their NICs to
//     the host.
//   - It moves RDMA devices that drivers re-create into their pods again.
//   - It announces addresses of interfaces whose carrier came late.
//   - It reports NICs that a pod lacks, and NICs that were not returned as they were.
//
// The keeper has no state of its own, because the ledger shows what is to be done. So the keeper
// may be killed at any instant, may run several times at once, or may not run at all. It ends
// attachments with pkg/attachment, under the same lock that the plugins take, so it never disturbs
// an ADD or DEL.
//
//	k, err := keeper.New(keeper.Options{StateDirs: []string{"/run/rail-cni"}, Log: log})
//	a.Add(k.Component()) // an agent.Agent
package keeper
