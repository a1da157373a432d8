package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/netconf"
	_ "github.com/rail-cni/rail-cni/pkg/quickstart"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/plugin"
)

// version is set by the linker.
var version = "devel"

func main() {
	// Without a receiver the Go runtime ends the process when it writes to a
	// stdout that is closed; with one the write fails, and ADD rolls back the
	// address that the runtime will never hear of.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	p := &plugin.Plugin{Version: version, FlatFiles: netconf.WhereaboutsFlatFiles(), Stdout: os.Stdout, Stderr: os.Stderr}
	skel.PluginMainFuncs(p.Funcs(context.Background()), cniversion.All, "CNI plugin whereabouts (rail-cni) "+version)
}
