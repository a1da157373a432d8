package main

import (
	"fmt"
	"runtime"

	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of railctl, and the CNI versions that it supports",
		Args:  cobra.NoArgs,
	}
	output := cli.AddOutputFlag(cmd, "version")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		spec := cniversion.All.SupportedVersions()
		v := versions{
			Version: cli.Version, CNI: spec, Ledger: ledger.Version,
			Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		}
		if *output != cli.Table {
			return output.Print(cmd.OutOrStdout(), v, nil)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "railctl (rail-cni) %s\nCNI %s to %s, ledger records of version %d\n%s %s\n",
			v.Version, spec[0], spec[len(spec)-1], v.Ledger, v.Go, v.Platform)
		return err
	}
	return cmd
}

// versions is the output of "railctl version -o json".
type versions struct {
	Version  string   `json:"version"`
	CNI      []string `json:"cniVersions"`
	Ledger   int      `json:"ledgerVersion"`
	Go       string   `json:"goVersion"`
	Platform string   `json:"platform"`
}
