package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/nri"
	"github.com/rail-cni/rail-cni/pkg/publish"
)

// nriFlags are the flags of "run" for NRI.
type nriFlags struct{ socket string }

func (f *nriFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.socket, "nri-socket", "/var/run/nri/nri.sock", `NRI socket of the container runtime, which need not exist; through NRI, containers of pods with rails get variables, files, locked memory and devices; "off" for no NRI`)
}

// components returns the NRI plugin. It returns no component if NRI is off.
func (f *nriFlags) components(h *host, publisher *publish.Keeper) ([]component.Component, error) {
	if f.socket == off {
		return nil, nil
	}
	if !filepath.IsAbs(f.socket) {
		return nil, fmt.Errorf("--nri-socket is %q; it must be an absolute path or %s", f.socket, off)
	}
	plugin := nri.New(nri.Options{Socket: f.socket, Lookup: publisher.Lookup, Root: hostRoot, Dirs: h.dirs, Notify: h.notify, Log: h.log})
	return []component.Component{plugin.Component()}, nil
}
