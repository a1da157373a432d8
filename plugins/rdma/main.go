// rdma is a chained plugin: it runs after the plugin that attached a NIC. In exclusive RDMA
// mode it moves the NIC's RDMA devices into the pod. In shared mode it only records the
// devices.
//
//	{"cniVersion": "1.1.0", "name": "rail0", "plugins": [
//		{"type": "sriov"},
//		{"type": "rdma"}
//	]}
package main

import (
	"runtime"

	"github.com/rail-cni/rail-cni/pkg/part/plans"
	_ "github.com/rail-cni/rail-cni/pkg/quickstart"
)

// version is set by the linker.
var version = "unknown"

// The process's first thread must never be parked in another namespace, because that
// would keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() { plans.RDMA().Main(version) }
