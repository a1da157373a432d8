// rdma stands in a chain behind the plugin that gave a pod its interface, and
// gives the pod the RDMA devices of that interface's NIC.
package main

import (
	"runtime"

	"github.com/rail-cni/rail-cni/pkg/part/all"
)

// version is set by the linker.
var version = "unknown"

// The process's first thread must never be parked in another namespace: that
// would keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() { all.RDMA().Main(version) }
