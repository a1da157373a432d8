// rdma follows the plugin that attached a NIC in a chain, and moves the NIC's
// RDMA devices into the pod.
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
