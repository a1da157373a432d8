package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	_ "github.com/rail-cni/rail-cni/pkg/quickstart"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/plugin"
)

// version is set by the linker.
var version = "devel"

func main() {
	// Without a receiver for SIGPIPE, the Go runtime ends the process when it writes to a
	// stdout that is closed. With a receiver the write fails, and ADD frees the
	// address again, because the container runtime will never learn of it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	p := &plugin.Plugin{Version: version, FlatFiles: ipamconf.WhereaboutsFlatFiles(), Stdout: os.Stdout, Stderr: os.Stderr}
	skel.PluginMainFuncs(p.Funcs(context.Background()), cniversion.All, "CNI plugin whereabouts (rail-cni) "+version)
}
