// Package e2e runs what users apply on a real cluster: the NADs and pods of
// examples/, from kubectl apply to what the pod's own ip(8) shows, behind
// Multus thin and thick, with kubelets, containerd and the default network of
// [cluster]. What the plugins do behind Multus in detail is in
// integration/multus; here it is what a user of Kubernetes sees of it.
//
// The NICs are veths: what needs hardware (a PCI address, an RDMA device, a
// device plugin that has given one) is not here but in the rig.
package e2e
