package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	reach "github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

func newUninstall() *cobra.Command {
	var u cluster.Uninstaller
	access := reach.Flags{WithoutPlugins: true}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove rail-cni from all nodes of a cluster, then delete its objects",
		Long: `Remove rail-cni from all nodes of a cluster, then delete its objects.

On each node, the agent waits until no pod holds a NIC. Then it removes the
plugins, the kubeconfig and the flat file, and restores the earlier files, byte for
byte. This command and "kubectl describe node" name the pods that still hold a NIC.
A node that waits does not delay other nodes. When all nodes are done, the command
deletes the objects.

If you run the command again, it continues where it stopped. As long as it is not
done, "railctl install" (or a helm upgrade) brings the plugins back on all nodes.
Address pools and their definitions are not deleted: on nodes that continue with
whereabouts v0.9.4, the pools keep the addresses of the pods.`,
		Example: `  railctl uninstall
  railctl uninstall --timeout 1h
  railctl uninstall --crds`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	cli.AddClusterFlags(cmd, &access)
	f.StringVarP(&u.Namespace, "namespace", "n", "kube-system", "namespace of the DaemonSets")
	f.StringArrayVar(&u.Agents, "daemonset", nil, "name of a DaemonSet of the agents; may be given several times (default: all in the namespace; with --nodes-only: rail-agent)")
	f.DurationVar(&u.Timeout, "timeout", 5*time.Minute, "how long to wait for the nodes")
	f.BoolVar(&u.Force, "force", false, "do not wait for pods; then the NICs of running pods are not restored, and their addresses are not freed")
	f.BoolVar(&u.NodesOnly, "nodes-only", false, "remove rail-cni from the nodes, but keep the cluster's objects (Helm's pre-delete hook uses this)")
	f.BoolVar(&u.Definitions, "crds", false, "also delete whereabouts' CustomResourceDefinitions, and with them all address pools")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := access.Open(cli.UserAgent())
		if err != nil {
			return err
		}
		u.Client, u.Report = client, func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		return u.Run(ctx)
	}
	return cmd
}
