// Package kernels holds tests that run in the rig with each of its kernels and
// architectures: whole plugins on NICs of PCI functions, with RDMA where the kernel's
// machines have it. They have the build tag "kernels".
package kernels
