// ipoib makes a child of an InfiniBand interface for a pod, so that many pods share one port of an HCA.
//
//	{"cniVersion": "1.1.0", "name": "storage", "type": "ipoib", "master": "ibs102", "pkey": "0x8001"}
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

func main() { plans.IPoIB().Main(version) }
