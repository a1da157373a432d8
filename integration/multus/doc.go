// Package multus tests the plugins behind real Multus, as a cluster calls them:
// the API server and etcd of [controlplane], pods and networks as objects
// there, and nodes that are a network and a mount namespace each. The test
// takes the place of the container runtime and calls Multus through libcni;
// Multus, thin or thick, reads the pod's annotation and calls the plugins on
// the node.
//
// A node has its own /run, /etc and /var/lib, so that every path is the one
// that users have, and the machine's files are not changed. Its NICs are veths:
// they move as NICs of hardware do, but are destroyed with a pod's network
// namespace, and have no PCI address and no RDMA device. The rig has such NICs,
// and no API server.
package multus
