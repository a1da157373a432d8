// ib-sriov lends an InfiniBand virtual function to a pod, as host-device lends a NIC. It
// gives the function the pod's GUID, which it sets through the physical function. The
// fabric manager uses the GUID to put the pod into partitions. ib-sriov takes the place of
// ib-sriov-cni.
//
//	{"cniVersion": "0.3.1", "name": "ib", "type": "ib-sriov", "pkey": "0x6", "ibKubernetesEnabled": true, "ipam": {"type": "whereabouts", "range": "192.168.6.0/24"}}
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

func main() { plans.IBSRIOV().Main(version) }
