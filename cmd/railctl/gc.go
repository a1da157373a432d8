package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func newGC(stateDir *string) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "End the attachments whose pod is gone: return their NICs, free their addresses",
		Long: `End the attachments of this node whose pod no longer has a network namespace. Such
a pod was killed without a CNI DEL, or the runtime lost track of it. For each
attachment, gc returns the NIC to the host with its earlier settings, lets the IPAM
plugin free the addresses, and removes the record. gc also ends attachments whose
addresses could not be freed earlier. It never touches the attachments of living
pods.

Every ADD does the same before it begins. Use this command if no new pod starts on
the node, or if you want to see why an attachment cannot be ended.

The exit code is 1 if an attachment could not be ended. The last column has the
reason. "busy" means that a plugin is working on the attachment at this moment.`,
		Example: `  railctl gc --dry-run
  railctl gc
  railctl gc -o json | jq -r '.[] | select(.outcome == "not ended") | .error'`,
		Args: cobra.NoArgs,
	}
	output := cli.AddOutputFlag(cmd, "gc")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be ended, and why")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return collect(cmd, *stateDir, output, dryRun)
	}
	return cmd
}

func collect(cmd *cobra.Command, stateDir string, output *cli.Format, dryRun bool) error {
	if err := cli.RequireRoot(); err != nil {
		return err
	}
	var endings []inventory.Ending
	var errs []error
	if ledger.Exists(stateDir) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		var err error
		if endings, errs, err = inventory.EndStale(ctx, stateDir, cli.PlainLog(cmd.ErrOrStderr()), dryRun); err != nil {
			return err
		}
	}
	if err := printEndings(cmd, output, endings); err != nil {
		return err
	}
	return cli.ReportErrors(cmd.ErrOrStderr(), errs)
}

func printEndings(cmd *cobra.Command, output *cli.Format, endings []inventory.Ending) error {
	if len(endings) == 0 && *output == cli.Table {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing to end: every attachment has its pod")
		return nil
	}
	if endings == nil {
		endings = []inventory.Ending{}
	}
	rows := [][]string{{"POD", "IFNAME", "PLUGIN", "NIC", "ADDRESSES", "WHY", "OUTCOME"}}
	for i := range endings {
		e := &endings[i]
		outcome := e.Outcome
		if e.Error != "" {
			outcome += ": " + strings.ReplaceAll(e.Error, "\n", "; ")
		}
		rows = append(rows, []string{e.Attachment.Holder(), e.IfName, e.Plugin, e.NIC, strings.Join(e.Addresses, ","), e.Why, outcome})
	}
	return output.Print(cmd.OutOrStdout(), endings, rows)
}
