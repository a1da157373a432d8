// Package block is an address store in which a node chooses addresses by itself, in
// blocks of a cluster's pool that it holds. An ADD makes no request while a block of the
// node has a free address and was confirmed in the last ten minutes. No DEL makes one. The cluster may be of any size, and its
// API server may be away.
//
// A block is a part of a pool: block_size neighboring addresses. The server has an IPPool
// for each block, whose annotations name the holder ([api.Block]). A node claims it
// by creating that object. If nobody holds the block, or this node in an earlier boot, it
// claims it by a patch that tests that the claim has not changed. So two nodes never hold
// one block. Blocks of one pool are different objects: nodes that claim at the
// same time do not wait for each other. Nodes try them in an order of their own.
//
// The addresses of the node's blocks are in the node's local store ([local.Store]), like
// those of a network without a cluster. A file has the blocks:
//
//	<state directory>/ipam-kubernetes/<server>/blocks/<pool>.json
//
// It is written before the server knows a claim, so a killed process leaves no block that
// nobody finds. It is valid for one boot, like the pods. After a reboot, a node takes
// the blocks of its earlier boot again. It leaves a block of this boot alone that is not
// in the file, because pods may have its addresses.
//
// The node must learn that the cluster gave one of its blocks to another node. So a
// confirmation is valid for an hour ([api.BlockUsableFor]). The
// [Keeper] of rail-agent asks every five minutes; without it, an ADD asks after ten. The
// reconciler first marks the block of a node that is gone as revoked. A node that is not
// gone removes the mark when it asks. If the mark stays for longer than an hour
// ([api.BlockFreeAfter]), the block is freed: no node assigns its addresses then. So clocks need
// not agree.
//
// The entries of a block's IPPool are for people: the Keeper publishes there who has the
// addresses.
//
// With [ipam.Claim.SameHost] the blocks are not of the pools of the rails, but of the pool of
// their host parts, [ipam.HostPool]: a block of it, 0.0.0.16/28, is the node's in the pool of
// each rail, as 10.0.0.16/28, 10.1.0.16/28, … So a pod with many rails needs one block, also if
// nodes have different rails. The addresses are in the local store's pool of each rail, and the
// local store chooses the host part. The node's file of the blocks,
// <pool>.hosts, has the pools of the rails that it uses. A block is empty if none of these has an
// address of it. Each rail's pool has a guard ([api.GuardRail]), which is made once in a cluster.
//
// A pool is divided by blocks of one size, or used entry by entry ([api.Guard]), never
// both.
//
// To assign an address of each claim:
//
//	s, err := block.New(block.Options{Client: client, StateDir: "/run/rail-cni", Node: "node1", Size: 16})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	addresses, err := s.Allocate(ctx, owner, claims)
package block
