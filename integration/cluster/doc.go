// Package cluster is a real Kubernetes on one machine: the control plane of
// [controlplane], and nodes with a kubelet, containerd and runc each, without a
// registry, Docker or a network of the machine's. "make cluster-binaries" builds
// and fetches what it runs.
//
// [Start] starts a cluster for a test, [New] one for a program. A node is a
// network, mount, PID and UTS namespace: it has its own interfaces, processes
// and name, and a view of the machine's files whose /etc, /opt and /var are
// private and whose /run and state directories are empty, so that every path on
// it is the one that users have. Its NICs are veths, and each rail is a switch
// that joins the NICs of one name on all nodes. They move as NICs of hardware
// do, but have no PCI address and no RDMA device, and are deleted with a pod's
// network namespace unless [Options].Hardware is set.
//
// The API server has the address of the service "kubernetes", so that in-cluster
// configuration works in every pod, although there is no kube-proxy. A DNS has the
// names of headless services and of their pods. Nodes have no way out.
//
// All of it ends with the process that started it, however that one ends, and
// leaves nothing but the files in its directory.
package cluster
