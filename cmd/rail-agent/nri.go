package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/nri"
	"github.com/rail-cni/rail-cni/pkg/publish"
)

// nriFlags are the flags of "run" about NRI.
type nriFlags struct{ socket string }

func (f *nriFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.socket, "nri-socket", "/var/run/nri/nri.sock", `the container runtime's NRI socket, which need not exist: by it containers of pods with rails get variables, files, locked memory and devices; "off" for no NRI`)
}

// begin starts the NRI plugin in beside, unless it is off. A panic of it does not end the
// keeper.
func (f *nriFlags) begin(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, keeper *publish.Keeper) error {
	if f.socket == off {
		return nil
	}
	if !filepath.IsAbs(f.socket) {
		return fmt.Errorf("--nri-socket %q is not an absolute path; give one, or %s", f.socket, off)
	}
	options := nri.Options{Socket: f.socket, Lookup: keeper.Lookup, Root: hostRoot, Log: o.Log}
	if o.Teller != nil {
		options.Tell = o.Teller.Tell
	}
	plugin := nri.New(options)
	o.NRI = plugin.Metrics
	beside.Go(func() { plugin.Run(ctx) })
	return nil
}
