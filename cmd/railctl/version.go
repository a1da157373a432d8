package main

import (
	"fmt"
	"runtime"

	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and what it understands",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			spec := cniversion.All.SupportedVersions()
			fmt.Fprintf(cmd.OutOrStdout(), "railctl (rail-cni) %s\nCNI %s to %s, ledger records of version %d\n%s %s/%s\n",
				version, spec[0], spec[len(spec)-1], ledger.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
