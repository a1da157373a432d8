package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

func newIPAMShow() *cobra.Command {
	var c clusterCommand
	cmd := &cobra.Command{
		Use:   "show [POOL]",
		Short: "List the address pools of the cluster, or who holds the addresses of one",
		Long: `List the IPPools of the cluster: how many addresses are used, which networks
(NetworkAttachmentDefinitions) name the pool, and problems: an entry without its
reservation (or with the reservation of another pod), a gateway that a pod holds,
keys that are no address. With a pool's name or range, list its holders.

FREE and SIZE are of the whole network without its first and last address.
"railctl ipam explain" also knows what a configuration leaves out.

The exit code is 1 if something cannot be read. The rest is shown.`,
		Example: `  railctl ipam show
  railctl ipam show 172.31.1.0/24
  railctl ipam show -o json | jq -r '.[] | .name + " " + .problems[]'`,
		Args: cobra.MaximumNArgs(1),
	}
	output := addOutputFlag(cmd)
	c.Add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		views, errs, err := report.Pools(ctx, client)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			err = printPools(cmd, output, views)
		} else {
			err = printHolders(cmd, output, views, args[0])
		}
		if err != nil {
			return err
		}
		return reportErrors(cmd.ErrOrStderr(), errs)
	}
	return cmd
}

func printPools(cmd *cobra.Command, output *format, views []*report.Pool) error {
	if len(views) == 0 && *output == asTable {
		fmt.Fprintln(cmd.OutOrStdout(), "no pools: nobody has got an address of this cluster yet")
		return nil
	}
	rows := [][]string{{"POOL", "RANGE", "USED", "FREE", "SIZE", "NETWORKS", "PROBLEMS"}}
	for _, v := range views {
		problems := ""
		switch n := len(v.Problems); {
		case n == 1:
			problems = v.Problems[0]
		case n > 1:
			problems = fmt.Sprintf("%s (and %d more)", v.Problems[0], n-1)
		}
		rows = append(rows, []string{v.Name, v.Range.String(), strconv.Itoa(v.Used), report.Count(v.Free), report.Count(v.Size), strings.Join(v.Networks, ","), problems})
	}
	return output.print(cmd.OutOrStdout(), views, rows)
}

func printHolders(cmd *cobra.Command, output *format, views []*report.Pool, name string) error {
	wanted := []*report.Pool{}
	rows := [][]string{{"ADDRESS", "POD", "IFNAME", "CONTAINER", "RESERVATION", "PROBLEM"}}
	for _, v := range views {
		if v.Name != name && v.Range.String() != name {
			continue
		}
		wanted = append(wanted, v)
		for _, h := range v.Holders {
			rows = append(rows, []string{h.Address.String(), h.PodRef, h.IfName, h.ContainerID[:min(len(h.ContainerID), 12)], h.Reservation, h.Problem})
		}
	}
	if len(wanted) == 0 {
		return fmt.Errorf("there is no pool %q; railctl ipam show lists them", name)
	}
	return output.print(cmd.OutOrStdout(), wanted, rows)
}
