// Package shareddeviceplugin pins k8s-rdma-shared-dev-plugin, the device plugin that many
// nodes have when rail-agent comes; "make peers" builds it into bin/peers as
// "k8s-rdma-shared-dp".
//
// It has a module apart from the others, because its release has old versions of grpc and
// of the kubelet's API.
package shareddeviceplugin
