// Package rig runs Go test binaries in a virtual machine whose kernel has
// features that this machine's may lack: the RDMA core, every kind of link, and
// NICs on PCI functions, which can be lent, unplugged, and lost with a pod.
//
// [Build] makes the machine's kernel and file system from Debian's packages and
// the kernel module in module/, and keeps them in a cache. [Machine.Run] boots
// it and runs one test binary inside, as command exec does for "go test -exec".
// Guest and host exchange the frames of package wire.
//
// It imports nothing of pkg/: the tested code comes in as binaries.
package rig
