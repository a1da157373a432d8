package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	reach "github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

func newUninstall() *cobra.Command {
	var u cluster.Uninstaller
	access := reach.Flags{WithoutPlugins: true}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove rail-cni from all nodes of a cluster, then delete its objects",
		Long: `Remove rail-cni from all nodes of a cluster, then delete its objects.

Each node's agent removes the plugins, the kubeconfig and the flat file, and
restores the earlier files, byte for byte. It waits until no pod of its node holds a
NIC. This command and "kubectl describe node" name the pods that still hold one.
Other nodes do not wait. When all nodes are done, the objects are deleted.

If you run it again, it continues where it stopped. Until it is done, "railctl
install" (or a helm upgrade) brings the plugins back on all nodes. Pools and their
definitions stay, because nodes that continue with whereabouts v0.9.4 keep the
addresses of their pods in them.`,
		Example: `  railctl uninstall
  railctl uninstall --timeout 1h
  railctl uninstall --crds`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	addClusterFlags(cmd, &access)
	f.StringVarP(&u.Namespace, "namespace", "n", "kube-system", "namespace of the DaemonSets")
	f.StringArrayVar(&u.Agents, "daemonset", nil, "name of a DaemonSet of the agents; may be given several times (default: all in the namespace, with --nodes-only rail-agent)")
	f.DurationVar(&u.Timeout, "timeout", 5*time.Minute, "how long to wait for the nodes")
	f.BoolVar(&u.Force, "force", false, "do not wait for pods; their NICs are not restored then, and their addresses are not freed")
	f.BoolVar(&u.NodesOnly, "nodes-only", false, "remove rail-cni from the nodes, but keep the cluster's objects (Helm's pre-delete hook uses this)")
	f.BoolVar(&u.Definitions, "crds", false, "delete whereabouts' CustomResourceDefinitions too, and with them all pools")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := access.Open("railctl/" + version)
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
