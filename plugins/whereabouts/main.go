package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// version is set by the linker.
var version = "devel"

func main() {
	p := &plugin{flatFiles: netconf.WhereaboutsFlatFiles(), stdout: os.Stdout, stderr: os.Stderr}
	skel.PluginMainFuncs(p.funcs(context.Background()), cniversion.All, "CNI plugin whereabouts (rail-cni) "+version)
}
