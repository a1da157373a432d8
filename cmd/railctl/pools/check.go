package pools

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

func newIPAMCheck() *cobra.Command {
	var c clusterCommand
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the address ranges of all networks against each other and the pools",
		Long: `Check the ranges of all NetworkAttachmentDefinitions that use whereabouts. It
reports:

  ranges that overlap without enable_overlapping_ranges (duplicate addresses);
  gateways that a pod holds, or that another network of the same pool can assign;
  ranges with more addresses than one IPPool can hold, without blocks or node slices;
  node slices that do not exist, and nodes without a node slice;
  networks with the same range of which one has another block_size, or none;
  ranges with at most as many blocks as the cluster has nodes;
  configurations that cannot work.

The exit code is 1 if there is an error. If there are only warnings, it is 0.`,
		Args: cobra.NoArgs,
	}
	output := cli.AddOutputFlag(cmd, "ipam check")
	cli.AddPoolFlags(cmd, &c.Flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		found, err := report.Check(ctx, client)
		if err != nil {
			return err
		}
		if err := printVerdicts(cmd, output, found); err != nil {
			return err
		}
		errs := found.Errors
		if n := found.Wrong(); n > 0 {
			errs = append(errs, fmt.Errorf("%d errors", n))
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), errs)
	}
	return cmd
}

func printVerdicts(cmd *cobra.Command, output *cli.Format, found *report.Verdicts) error {
	rows := [][]string{{"LEVEL", "NETWORK", "WHAT", "CURE"}}
	for _, v := range found.All {
		rows = append(rows, []string{v.Level, v.Network, v.What, v.Cure})
	}
	if len(found.All) == 0 && *output == cli.Table {
		fmt.Fprintf(cmd.OutOrStdout(), "nothing is wrong with the %d ranges\n", found.Ranges)
		return nil
	}
	return output.Print(cmd.OutOrStdout(), found.All, rows)
}
