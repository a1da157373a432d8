// host-device lends a NIC of the host to a pod: it moves the NIC's netdev into
// the pod's network namespace, and brings it home when the attachment ends.
package main

import (
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/rail-cni/rail-cni/pkg/attach"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// version is set by the linker.
var version = "unknown"

// The process's first thread must never be parked in another namespace: that
// would keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() {
	attach.Plugin{
		Name: "host-device",
		Bare: attach.LendNIC{Conf: &netconf.HostDevice{}},
		Parse: func(args *skel.CmdArgs) (attach.Provision, *netconf.Common, error) {
			conf, err := netconf.ParseHostDevice(args.StdinData)
			if err != nil {
				return nil, nil, err
			}
			return attach.LendNIC{Conf: conf}, &conf.Common, nil
		},
	}.Main(version)
}
