// sriov lends a virtual function to a pod, as host-device lends a NIC. It also makes the
// settings that are made through the physical function: VLAN, MAC, spoof check, trust, link
// state and rates. sriov takes the place of sriov-cni.
//
//	{"cniVersion": "0.3.1", "name": "storage", "type": "sriov", "vlan": 100, "ipam": {"type": "whereabouts", "range": "192.168.6.0/24"}}
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

func main() { plans.SRIOV().Main(version) }
