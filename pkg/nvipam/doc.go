// Package nvipam reads which prefixes nv-ipam (github.com/Mellanox/nvidia-k8s-ipam) has
// allocated to this node, from the status of its CIDRPools, and writes them into the file of
// pkg/nodeprefix. It changes no object of the cluster.
//
// nv-ipam's controller divides the CIDR of a pool into a prefix for each node. Its own plugin
// then assigns the addresses of the prefix; with rail-cni, whereabouts' local store does.
// Neither knows which addresses the other has assigned, so only one of them may use a pool.
//
// rail-agent runs the [Keeper]. It lists the pools once and watches them: an idle node makes
// a request every five minutes.
package nvipam
