// Package resource decides which NICs of a node are offered to the kubelet, and as which
// extended resources. It also decides which rail each NIC is.
//
// [Config] and [Rails] have what the administrator wrote in the node file. A pool in the
// node file, and a resource in a configuration of k8s-rdma-shared-dev-plugin or of
// sriov-network-device-plugin, both become a [PoolConfig]. [Config.Pools] applies the
// configuration to the NICs of the node, lent or not. The package neither reads files of
// the kernel nor talks to other programs. The caller passes the facts about the NICs.
//
//	pools, problems := config.Pools(nics, rails)
//	for _, p := range pools {
//		fmt.Println(p.Resource, p.IDs())
//	}
package resource
