package pools

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

func newIPAMExplain() *cobra.Command {
	var c clusterCommand
	var node string
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/NAD | FILE",
		Short: "Show which address a network would assign next, and why",
		Long: `For each range of a network, show which address the next new pod would get, and why
no lower address is free. An address is not free if it is excluded, is a gateway,
is held by a pod, or is reserved by another pool of the same address space. Name
the network by its NetworkAttachmentDefinition, or by a file with a CNI
configuration or list.

A pod that already holds an address of the pool gets the same address again. If
several ADDs run at the same time, some of them get higher addresses.

If the network has block_size, the command lists the blocks that the node holds,
and looks for the next address in these blocks. Only the node knows for certain
which addresses are free. Its rail-agent publishes them some seconds later.`,
		Example: `  railctl ipam explain default/roce-net-1
  railctl ipam explain ./10-rail.conflist --node node1`,
		Args: cli.OneArg("a network or its file"),
	}
	output := cli.AddOutputFlag(cmd, "ipam explain")
	cli.AddPoolFlags(cmd, &c.Flags)
	cmd.Flags().StringVar(&node, "node", "", "node of the new pod; needed if the network has node_slice_size or block_size")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		networks, err := report.FindNetworks(ctx, client, args[0])
		if err != nil {
			return err
		}
		list, err := report.Explain(ctx, client, networks, node)
		if err != nil {
			return err
		}
		return printExplanations(cmd, output, list)
	}
	return cmd
}

func printExplanations(cmd *cobra.Command, output *cli.Format, list []report.Explanation) error {
	if *output != cli.Table {
		return output.Print(cmd.OutOrStdout(), list, nil)
	}
	var errs []error
	for _, x := range list {
		out := cli.Escaper(cmd.OutOrStdout())
		fmt.Fprintf(out, "network %s, pool %s: from %s to %s\n", x.Network, x.Pool, x.First, x.Last)
		printBlocksOf(out, &x)
		const maxShown = 20
		for i, s := range x.Steps {
			if i == maxShown && len(x.Steps) > maxShown {
				fmt.Fprintf(out, "  … and %d more; -o json lists all\n", len(x.Steps)-maxShown)
				break
			}
			block := s.From.String()
			if s.To != s.From {
				block += " to " + s.To.String()
			}
			fmt.Fprintf(out, "  %s: %s\n", block, s.Why)
		}
		if x.Error != "" {
			errs = append(errs, errors.New(x.Error))
			continue
		}
		if x.Next.IsValid() {
			fmt.Fprintf(out, "  %s: free, comes next\n", x.Next)
		}
		if x.Claims {
			fmt.Fprintf(out, "  the next ADD claims a block of %d addresses\n", x.BlockSize)
		}
	}
	return cli.ReportErrors(cmd.ErrOrStderr(), errs)
}

// printBlocksOf prints the blocks that the node holds, if the network has blocks.
func printBlocksOf(out io.Writer, x *report.Explanation) {
	switch {
	case x.Node == "":
		return
	case len(x.Blocks) == 0:
		fmt.Fprintf(out, "  node %s holds no block\n", x.Node)
		return
	}
	fmt.Fprintf(out, "  node %s holds these blocks of %d addresses; the numbers of used addresses are as its rail-agent has published them\n", x.Node, x.BlockSize)
	for _, b := range x.Blocks {
		fmt.Fprintf(out, "    %s: %d used", b.Range, b.Used)
		if why := b.Problem(); why != "" {
			fmt.Fprintf(out, ", %s", why)
		}
		fmt.Fprintln(out)
	}
}
