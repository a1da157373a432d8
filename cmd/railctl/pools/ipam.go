// Package pools has the commands of "railctl ipam", about the address pools of the cluster.
package pools

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
)

// clusterTime is the time limit of a command, in addition to a grace period. It is needed because
// the client retries until its context ends.
const clusterTime = 5 * time.Minute

// NewIPAM returns the command "railctl ipam".
func NewIPAM(stateDir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Inspect, check and clean up the address pools of the cluster",
		Long: `Inspect, check and clean up whereabouts' address pools (IPPool) in the cluster.
These commands run on any machine with a kubeconfig, without root. On a node, "gc"
also frees addresses that the node's plugins could not free while the API server
was unreachable.`,
	}
	cmd.AddCommand(newIPAMShow(), newIPAMExplain(), newIPAMCheck(), newIPAMGC(stateDir))
	return cmd
}

// clusterCommand has the flags that all commands of "railctl ipam" share.
type clusterCommand struct{ cluster.Flags }

// begin opens the cluster. The context ends after clusterTime and the grace period wait.
func (c *clusterCommand) begin(cmd *cobra.Command, wait time.Duration) (context.Context, context.CancelFunc, *kube.Client, error) {
	client, err := c.Open(cli.UserAgent())
	if err != nil {
		return nil, nil, nil, err
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTime+wait)
	return ctx, cancel, client, nil
}

func newIPAMGC(stateDir *string) *cobra.Command {
	var c clusterCommand
	var dryRun bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Free the addresses of pods that are gone, and repair incomplete pairs",
		Long: `Free the addresses of pods that are gone. This removes entries of IPPools together
with their reservations, and reservations without an entry. If some entries of a
pool have reservations, the command also creates the reservations that other
entries of the pool lack.

It checks twice and waits for the grace period between the two checks. Before it
frees an address, it checks the pod once more. A pod that exists keeps its
addresses until its DEL, except if the pod has ended (Succeeded, Failed). With
--grace 0s it checks only once. Use that only if no pod is about to be created
again with the same name.

The command does not remove entries without podref, entries whose key is not an
address, and entries whose holder is not a pod. The outcome "left alone" means that
a person must decide.

The exit code is 1 if something failed, or if something changed during the run so
that the next run must deal with it.`,
		Example: `  railctl ipam gc --dry-run
  railctl ipam gc --grace 2m
  railctl ipam gc -o json | jq -r '.[] | select(.outcome == "freed") | .address'`,
		Args: cobra.NoArgs,
	}
	output := cli.AddOutputFlag(cmd, "ipam gc")
	cli.AddPoolFlags(cmd, &c.Flags)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check once, and only print what would be freed if nothing changed during the grace period")
	cmd.Flags().DurationVar(&grace, "grace", reconcile.DefaultGrace, "time between the two checks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel, client, err := c.begin(cmd, grace)
		if err != nil {
			return err
		}
		defer cancel()
		o := reconcile.Options{Client: client, Grace: grace, DryRun: dryRun, Log: cli.PlainLog(cmd.ErrOrStderr())}
		if _, err := os.Stat(netconf.JournalDir(*stateDir)); err == nil && !dryRun {
			s, err := c.Store(cli.UserAgent(), *stateDir)
			if err != nil {
				return err
			}
			defer s.Close()
			o.Journal = s
		}
		found, err := reconcile.New(o).Once(ctx)
		if printErr := printFindings(cmd, output, found); printErr != nil {
			return printErr
		}
		var errs []error
		if err != nil {
			errs = append(errs, err)
		}
		if left := reconcile.Count(found, reconcile.Failed, reconcile.Changed, reconcile.Waiting); left > 0 {
			errs = append(errs, fmt.Errorf("%d of %d findings are not settled yet", left, len(found)))
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), errs)
	}
	return cmd
}

func printFindings(cmd *cobra.Command, output *cli.Format, found []*reconcile.Finding) error {
	if len(found) == 0 && *output == cli.Table {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing to free: every address has its pod")
		return nil
	}
	if found == nil {
		found = []*reconcile.Finding{}
	}
	rows := [][]string{{"POOL", "ADDRESS", "RESERVATION", "POD", "IFNAME", "WHAT", "WHY", "OUTCOME"}}
	for _, f := range found {
		outcome, address := f.Outcome, ""
		if f.Error != "" {
			outcome += ": " + f.Error
		}
		if f.Address.IsValid() {
			address = f.Address.String()
		}
		rows = append(rows, []string{f.Pool, address, f.Reservation, f.PodRef, f.IfName, string(f.Kind), f.Why, outcome})
	}
	return output.Print(cmd.OutOrStdout(), found, rows)
}
