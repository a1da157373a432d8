package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func newShow(stateDir *string) *cobra.Command {
	var s shown
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the attachments of this node, and the NICs lent to them",
		Long: `List the attachments of this node. An attachment shows which NIC, or which macvlan
on a NIC, a pod has, and the name and the addresses of its interface.

PHASE is lending (an ADD is working on the attachment, or was killed), lent,
returning (a DEL is working on the attachment, or was killed), or freeing (the NIC
is returned, but the IPAM plugin could not free the addresses yet). STATE is
"alive" if the pod's network namespace still exists, and otherwise "gone". The next
ADD or "railctl gc" ends an attachment whose state is "gone".

LINK is "up" if the interface in the pod is up and has a carrier, "-" if the
interface is not in the pod or cannot be read, and otherwise "down". RDMA is the
device and port of an attachment with RDMA. LINK and PORT STATE are current values.
GID is the index of the RoCE v2 GID of the interface's address in the port's table.
Use this index for ib_write_bw -x and NCCL_IB_GID_INDEX. With -o wide, the table
also has the char device, the values of the GIDs, and the RDMA mode. A value that
cannot be read is "?", and stderr has the reason.

VF SETTINGS are the settings of a virtual function that the attachment has changed.
The values are those that the network has set. The earlier values are not shown.

The network namespace from which a NIC was lent is the NIC's host netns. Without
--all, only attachments with railctl's own host netns are listed. --all also lists
attachments with another host netns (nested runtimes).

If a NIC was returned with other settings than it had before it was lent, stderr
names the NIC and these settings.

If a record, an RDMA device or the node file (/etc/rail-cni/node.yaml) cannot be
read, stderr has the error, the rest is shown, and the exit code is 1.`,
		Example: `  railctl show
  railctl show -o json | jq -r '.[] | select(.state == "gone") | .nic'
  railctl show -o json | jq -r '.[] | .rdma.devices[]?.gids[]? | "\(.address) \(.index)"'
  railctl show -o json | jq -r '.[] | select(.vf) | "\(.pod) \(.vf.settings.VLAN)"'
  railctl show --all -o yaml`,
		Args: cobra.NoArgs,
	}
	s.format = cli.AddOutputFlag(cmd, "show")
	cmd.Flags().BoolVarP(&s.all, "all", "A", false, "also list attachments with other host network namespaces")
	cmd.Flags().BoolVarP(&s.wide, "wide", "w", false, "the same as -o wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.stateDir = *stateDir
		if *s.format == cli.Wide {
			*s.format, s.wide = cli.Table, true
		}
		return s.run(cmd)
	}
	return cmd
}

// shown is one run of "railctl show".
type shown struct {
	format   *cli.Format
	all      bool
	wide     bool
	stateDir string
}

func (s *shown) run(cmd *cobra.Command) error {
	if err := cli.RequireRoot(); err != nil {
		return err
	}
	if !ledger.Exists(s.stateDir) {
		if *s.format == cli.Table {
			fmt.Fprintf(cmd.OutOrStdout(), "no attachments: there is no ledger at %s, so no plugin has used it since the node booted\n", s.stateDir)
			return nil
		}
		return s.format.Print(cmd.OutOrStdout(), []inventory.Attachment{}, nil)
	}
	list, err := inventory.Collect(s.stateDir, s.all)
	if err != nil {
		return err
	}
	if err := s.print(cmd, list.Attachments); err != nil {
		return err
	}
	if list.Others > 0 {
		cli.Note(cmd.ErrOrStderr(), "%d attachment(s) with other host network namespaces are not shown; --all also lists them", list.Others)
	}
	printReturned(cmd, list.Returned)
	return cli.ReportErrors(cmd.ErrOrStderr(), list.Errors)
}

// printReturned prints the NICs that were returned with other settings than they had before.
func printReturned(cmd *cobra.Command, changed []*ledger.Returned) {
	out := cli.Escaper(cmd.ErrOrStderr())
	for _, r := range changed {
		cli.Note(cmd.ErrOrStderr(), "%s was returned, but not as it was, since %s (%s):", r.NIC, r.Time.Format(time.RFC3339), r.Holder)
		for _, c := range r.Changed {
			fmt.Fprintf(out, "  %s\n", c)
		}
		fmt.Fprintf(out, "  (correct it, then remove %s)\n", r.File)
	}
}

func (s *shown) print(cmd *cobra.Command, list []inventory.Attachment) error {
	if len(list) == 0 && *s.format == cli.Table {
		fmt.Fprintln(cmd.OutOrStdout(), "no attachments")
		return nil
	}
	hasRDMA := slices.ContainsFunc(list, func(a inventory.Attachment) bool { return a.RDMA != nil })
	hasVF := slices.ContainsFunc(list, func(a inventory.Attachment) bool { return a.VF != nil })
	rows := [][]string{s.header(hasRDMA, hasVF)}
	for i := range list {
		rows = append(rows, s.row(&list[i], hasRDMA, hasVF))
	}
	return s.format.Print(cmd.OutOrStdout(), list, rows)
}

func (s *shown) header(hasRDMA, hasVF bool) []string {
	header := []string{"POD", "IFNAME", "PLUGIN", "NETWORK", "NIC", "PCI", "MTU", "LINK", "ADDRESSES"}
	if hasRDMA {
		header = append(header, "RDMA", "PORT STATE", "GID")
	}
	if hasRDMA && s.wide {
		header = append(header, "GID VALUE", "UVERBS", "MODE")
	}
	if hasVF {
		header = append(header, "VF SETTINGS")
	}
	header = append(header, "AGE", "PHASE", "STATE")
	if s.all {
		header = append(header, "HOST NETNS")
	}
	return header
}

func (s *shown) row(a *inventory.Attachment, hasRDMA, hasVF bool) []string {
	row := []string{a.Holder(), a.IfName, a.Plugin, a.Network, a.NIC, a.PCI, mtuCell(a.MTU), a.Link, strings.Join(a.Addresses, ",")}
	if hasRDMA {
		row = append(row, rdmaCells(a.RDMA, s.wide)...)
	}
	if hasVF {
		row = append(row, settingsCell(a.VF))
	}
	row = append(row, cell.Age(time.Since(a.Created)), string(a.Phase), a.State)
	if s.all {
		row = append(row, a.HostNetns)
	}
	return row
}

// settingsCell returns the settings of a virtual function, sorted by name, for example "VLAN 100,
// trust on".
func settingsCell(v *inventory.Function) string {
	if v == nil {
		return ""
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(v.Settings)) {
		all = append(all, name+" "+v.Settings[name])
	}
	return strings.Join(all, ", ")
}

// rdmaCells returns the cells about RDMA of a row of the table. Several devices or addresses share
// one cell.
func rdmaCells(p *inventory.RDMA, wide bool) []string {
	var names, states, indexes, values, uverbs []string
	mode := ""
	if p != nil {
		mode = p.Mode
		for _, d := range p.Devices {
			name := d.Name
			if d.Port != 0 {
				name = fmt.Sprintf("%s/%d", d.Name, d.Port)
			}
			names, states, uverbs = append(names, name), append(states, d.State), append(uverbs, d.Uverbs)
			for _, g := range d.GIDs {
				index := strconv.Itoa(g.Index)
				if g.Missing {
					index = inventory.Unknown
				}
				indexes, values = append(indexes, index), append(values, g.Value)
			}
		}
	}
	cells := []string{cell.List(names), cell.List(states), cell.List(indexes)}
	if wide {
		cells = append(cells, cell.List(values), cell.List(uverbs), mode)
	}
	return cells
}
