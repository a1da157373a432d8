package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	reach "github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

func newReady() *cobra.Command {
	var c cluster.Checker
	access := reach.Flags{WithoutPlugins: true}
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Wait until rail-cni is ready on all nodes of a cluster",
		Long: `Wait until the agents of all nodes are ready and up to date, the reconciler is
ready, and the API server has the kinds of address pools. An agent is ready when it
has installed the plugins, the API server accepts the plugins' kubeconfig, and the
agent has checked every record of the node. If this takes longer than --timeout,
the exit code is 1, and the error names the objects and nodes that are not ready.
"helm test" runs this command.`,
		Example: `  railctl ready
  railctl ready --namespace rails --timeout 2m`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	cli.AddClusterFlags(cmd, &access)
	f.StringVar(&c.Namespace, "namespace", "kube-system", "namespace of the DaemonSets")
	f.StringArrayVar(&c.Agents, "daemonset", nil, "name of a DaemonSet of the agents; may be given several times (default: all DaemonSets of agents in the namespace)")
	f.StringVar(&c.Reconciler, "reconciler", "rail-cni-reconciler", `name of the reconciler's Deployment; "" for none`)
	f.StringVar(&c.Pools, "pool-namespace", "kube-system", "namespace of the address pools")
	f.DurationVar(&c.Timeout, "timeout", time.Minute, "how long to wait")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := access.Open(cli.UserAgent())
		if err != nil {
			return err
		}
		c.Client, c.Report = client, func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }
		return c.Run(cmd.Context())
	}
	return cmd
}
