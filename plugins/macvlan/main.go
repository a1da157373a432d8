// macvlan makes a macvlan for a pod on a NIC that stays on the host, so that
// many pods share one RoCE NIC.
//
//	{"cniVersion": "1.1.0", "name": "shared", "type": "macvlan", "master": "ens2f0"}
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

func main() { plans.Macvlan().Main(version) }
