// Package block is an address store in which each node chooses addresses by itself. A node
// holds blocks of a pool of the cluster and assigns the addresses in them. An ADD makes no
// request while one of the node's blocks has a free address and was confirmed in the last
// ten minutes. A DEL never makes a request. So the cluster may be of any size, and its API
// server may be away.
//
// A block is a part of a pool: block_size neighboring addresses. The server has an IPPool
// for each block, whose annotations name the holder ([api.Block]). A node claims a block by
// creating this object. If the object exists but nobody holds the block, or this node held
// it in an earlier boot, the node claims the block by a patch. The patch tests that the
// claim in the object has not changed, so two nodes never hold the same block. The blocks
// of one pool are different objects, so nodes that claim at the same time do not wait for
// each other. Each node tries the blocks in a different order.
//
// The addresses of the node's blocks are in the node's local store ([local.Store]), like
// the addresses of a network without a cluster. A file lists the blocks of each pool:
//
//	<state directory>/ipam-kubernetes/<server>/blocks/<pool>.json
//
// The node writes a claim to the file before it sends the claim to the server. So if the
// process is killed in between, a later process still finds the block. The file is valid
// for one boot, like the pods. After a reboot, a node may take the blocks of its earlier
// boot again. It does not take a block that it claimed in this boot and that is missing in
// the file, because pods may have addresses of that block.
//
// The node must learn if the cluster has given one of its blocks to another node. So a
// confirmation is valid for an hour ([api.BlockUsableFor]). The [Keeper] of rail-agent asks
// for a new confirmation after five minutes. Without rail-agent, an ADD asks after ten. If
// a node is gone, the reconciler first marks its blocks as revoked. A node that is not gone
// after all removes the mark when it asks for the confirmation. If the mark stays for
// longer than an hour ([api.BlockFreeAfter]), the block is freed: by then no node assigns
// its addresses. For this the clocks of the machines need not agree.
//
// The entries of a block's IPPool are for people: the Keeper publishes there which pods
// have the addresses.
//
// With [ipam.Claim.SameHost] the blocks do not belong to the pools of the rails. They
// belong to one pool of host parts, [ipam.HostPool]. A node that holds the block
// 0.0.0.16/28 of that pool assigns the corresponding addresses in the pool of each rail:
// 10.0.0.16/28, 10.1.0.16/28, … So a pod with many rails needs only one block, even if the
// nodes have different rails. The addresses are in the local store's pool of each rail, and
// the local store chooses the host part. The node's file of these blocks, <pool>.hosts,
// also lists the pools of the rails that use them. A block is empty if none of these pools
// has an address of it. The pool of each rail has a guard ([api.GuardRail]), which is made
// once in a cluster.
//
// A pool is either divided into blocks of one size or used entry by entry ([api.Guard]),
// never both.
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
