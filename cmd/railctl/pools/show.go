package pools

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

func newIPAMShow() *cobra.Command {
	var c clusterCommand
	cmd := &cobra.Command{
		Use:   "show [POOL | NAMESPACE/NETWORK]",
		Short: "List the address pools of the cluster, or who holds the addresses of one",
		Long: `List the IPPools of the cluster. For each pool, show how many addresses are used,
which networks (NetworkAttachmentDefinitions) name the pool, and the pool's
problems. Problems are an entry without its reservation or with the reservation of
another pod, a gateway that a pod holds, and a key that is not an address. With the
name or the range of a pool, list who holds the pool's addresses. With the name of
a network, list this for all pools of the network.

FREE and SIZE count all addresses of the pool's range except the first and the
last. They ignore that a configuration may exclude addresses. "railctl ipam
explain" takes that into account.

Pools that are divided into blocks (block_size) have a separate table. BLOCKS is
the number of blocks in the whole range. CLAIMED is the number of blocks that nodes
hold. FREED is the number of blocks that were held earlier and are free now. The
other blocks were never claimed. If you name such a pool, the command lists its
blocks, the node that holds each block, and the pods that have addresses of the
block. Only the node knows for certain which pods these are. Its rail-agent
publishes them some seconds later.

If something cannot be read, the rest is shown, and the exit code is 1.`,
		Example: `  railctl ipam show
  railctl ipam show 172.31.1.0/24
  railctl ipam show default/roce
  railctl ipam show -o json | jq -r '.[] | .name + " " + .problems[]'`,
		Args: cobra.MaximumNArgs(1),
	}
	output := cli.AddOutputFlag(cmd, "ipam show")
	cli.AddPoolFlags(cmd, &c.Flags)
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
		return cli.ReportErrors(cmd.ErrOrStderr(), errs)
	}
	return cmd
}

func printPools(cmd *cobra.Command, output *cli.Format, views []*report.Pool) error {
	out := cmd.OutOrStdout()
	if *output != cli.Table {
		return output.Print(out, views, nil)
	}
	if len(views) == 0 {
		fmt.Fprintln(out, "no pools: no pod of this cluster has got an address yet")
		return nil
	}
	rows := [][]string{{"POOL", "RANGE", "USED", "FREE", "SIZE", "NETWORKS", "PROBLEMS"}}
	divided := [][]string{{"POOL", "RANGE", "BLOCKSIZE", "BLOCKS", "CLAIMED", "FREED", "USED", "NETWORKS", "PROBLEMS"}}
	for _, v := range views {
		used, networks, problems := strconv.Itoa(v.Used), strings.Join(v.Networks, ","), problemsOf(v)
		if d := v.Divided; d != nil {
			divided = append(divided, []string{v.Name, v.Range.String(), strconv.Itoa(d.BlockSize), report.Count(d.InRange), strconv.Itoa(d.Claimed), strconv.Itoa(d.Freed), used, networks, problems})
			continue
		}
		rows = append(rows, []string{v.Name, v.Range.String(), used, report.Count(v.Free), report.Count(v.Size), networks, problems})
	}
	if len(rows) > 1 {
		if err := output.Print(out, nil, rows); err != nil || len(divided) == 1 {
			return err
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, "divided into blocks, with the addresses that the nodes' rail-agents have published:")
	return output.Print(out, nil, divided)
}

// problemsOf returns a pool's problems as the text of a table's cell.
func problemsOf(v *report.Pool) string {
	switch n := len(v.Problems); n {
	case 0:
		return ""
	case 1:
		return v.Problems[0]
	default:
		return fmt.Sprintf("%s (and %d more)", v.Problems[0], n-1)
	}
}

func printHolders(cmd *cobra.Command, output *cli.Format, views []*report.Pool, name string) error {
	out := cmd.OutOrStdout()
	wanted := []*report.Pool{}
	var divided []*report.Pool
	rows := [][]string{{"ADDRESS", "POD", "IFNAME", "CONTAINER", "RESERVATION", "PROBLEM"}}
	for _, v := range views {
		if v.Name != name && v.Range.String() != name && !slices.Contains(v.Networks, name) {
			continue
		}
		wanted = append(wanted, v)
		if v.Divided != nil {
			divided = append(divided, v)
			continue
		}
		for _, h := range v.Holders {
			rows = append(rows, []string{h.Address.String(), h.PodRef, h.IfName, shortID(h), h.Reservation, h.Problem})
		}
	}
	if len(wanted) == 0 {
		return fmt.Errorf("there is no pool %q, and no pool of a network with that name; railctl ipam show lists both", name)
	}
	if *output != cli.Table || len(divided) == 0 {
		return output.Print(out, wanted, rows)
	}
	if len(rows) > 1 { // the pool has another address space
		if err := output.Print(out, nil, rows); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	for i, v := range divided {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := printBlocks(out, v); err != nil {
			return err
		}
	}
	return nil
}

// printBlocks prints the blocks of a pool and who holds their addresses, as tables.
func printBlocks(out io.Writer, v *report.Pool) error {
	table := cli.Table
	fmt.Fprintf(cli.Escaper(out), "pool %s, blocks of %d addresses; the holders of addresses are as the nodes' rail-agents have published them\n", v.Name, v.Divided.BlockSize)
	rows := [][]string{{"BLOCK", "NODE", "STATE", "USED", "PROBLEM"}}
	for _, b := range v.Divided.Blocks {
		rows = append(rows, []string{b.Range.String(), b.Node, b.State, strconv.Itoa(b.Used), b.Problem()})
	}
	if err := table.Print(out, nil, rows); err != nil || len(v.Holders) == 0 {
		return err
	}
	fmt.Fprintln(out)
	rows = [][]string{{"ADDRESS", "NODE", "POD", "IFNAME", "CONTAINER", "PROBLEM"}}
	for _, h := range v.Holders {
		rows = append(rows, []string{h.Address.String(), h.Node, h.PodRef, h.IfName, shortID(h), h.Problem})
	}
	return table.Print(out, nil, rows)
}

// shortID returns the beginning of a holder's container ID.
func shortID(h report.Holder) string { return h.ContainerID[:min(len(h.ContainerID), 12)] }
