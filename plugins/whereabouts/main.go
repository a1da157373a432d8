package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

func main() {
	p := &plugin{flatFiles: netconf.WhereaboutsFlatFiles(), stdout: os.Stdout, stderr: os.Stderr}
	skel.PluginMainFuncs(p.funcs(context.Background()), version.All, "CNI plugin whereabouts (rail-cni)")
}
