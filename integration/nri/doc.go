// Package nri tests rail-agent's NRI plugin with a real containerd 2, kubelet and Multus, on
// a node of integration/cluster, and the same pod on Debian's containerd, which has no NRI.
//
// The NICs of such a node are veths without RDMA devices. Where a test needs what follows
// from RDMA (variables, char devices), a plugin of its own stands in for rail-agent: this
// test binary once more, with package nri and package publish, which adds to each rail an
// RDMA device. The rig has real ones (integration/rig/pods).
package nri
