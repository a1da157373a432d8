// macvlan gives a pod a child of a NIC that stays on the host, so that many
// pods share one RoCE NIC.
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
		Name: "macvlan",
		Bare: attach.MakeChild{Conf: &netconf.Macvlan{}},
		Parse: func(args *skel.CmdArgs) (attach.Provision, *netconf.Common, error) {
			conf, err := netconf.ParseMacvlan(args.StdinData, netconf.ParseArgs(args.Args))
			if err != nil {
				return nil, nil, err
			}
			return attach.MakeChild{Conf: conf}, &conf.Common, nil
		},
	}.Main(version)
}
