// Package pods runs a Kubernetes node in the rig: containerd, a kubelet and
// Multus with the released plugins, on NICs with RDMA devices, and the
// examples' NADs and pods on it, in exclusive and in shared mode. rail-agent's
// device plugin offers the NICs, and integration/gpuplugin the GPUs beside them.
// In its long form the test compares what everybody says of the NICs of many pods,
// and has one pod behind the thick Multus.
// etcd and kube-apiserver run on the host, whose loopback the machine reaches.
//
// Tests that need no RDMA are in integration/e2e, with several nodes.
package pods
