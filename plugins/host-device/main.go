// host-device lends a NIC of the host to a pod: it moves the NIC's netdev into
// the pod's network namespace, and returns it when the attachment ends.
//
//	{"cniVersion": "1.1.0", "name": "rail0", "type": "host-device", "device": "ens12np0"}
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

func main() { plans.HostDevice().Main(version) }
