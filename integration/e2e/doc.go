// Package e2e applies the NADs and pods of examples/ to a real cluster, as
// users do, and compares the output of the pod's own ip(8), behind Multus thin
// and thick, with kubelets, containerd and the default network of [cluster].
// The details of the plugins behind Multus are tested in integration/multus;
// this package tests what a user of Kubernetes sees.
//
// The NICs are veths: tests that need hardware (a PCI address, an RDMA device,
// a device plugin's choice) are in the rig.
package e2e
