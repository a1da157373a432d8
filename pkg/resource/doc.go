// Package resource decides which NICs of a node are offered to the kubelet, as which
// extended resources, and which rail each NIC is.
//
// A [Config] and [Rails] are what the administrator wrote in the node file. Its own form,
// and the configurations of k8s-rdma-shared-dev-plugin and sriov-network-device-plugin,
// become the same [PoolConfig]. [Config.Pools] applies it to the NICs of the node, lent
// or not. The package reads no file of the kernel and talks to nobody: the facts of the
// NICs are the caller's.
//
//	pools, problems := config.Pools(nics, rails)
//	for _, p := range pools {
//		fmt.Println(p.Resource, p.IDs())
//	}
package resource
