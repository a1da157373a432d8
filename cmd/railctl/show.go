package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func newShow(stateDir *string) *cobra.Command {
	var s shown
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the attachments of this node, and the NICs lent to them",
		Long: `List the attachments of this node: which pod has which NIC, or which macvlan
on a NIC, under which name and with which addresses.

PHASE is the step of the attachment's life: lending (ADD works on it, or was
killed), lent, returning (DEL works on it, or was killed), freeing (the NIC is
returned, but the IPAM plugin could not free the addresses yet). STATE is "alive" if
the pod's network namespace still exists, and "gone" if not; the next ADD or
"railctl gc" then ends the attachment.

LINK is "up" if the interface in the pod is up and has a carrier, otherwise "down",
and "-" if the interface is not in the pod or cannot be read. RDMA is the device and
port of an attachment with RDMA. LINK and PORT STATE are the current ones. GID is
the index of the RoCE v2 GID of the interface's address in the port's table: use it
for ib_write_bw -x and NCCL_IB_GID_INDEX. With -o wide the table also has the char
device, the GIDs' values, and the RDMA mode. A value that cannot be read is "?";
stderr has the reason.

VF SETTINGS are the settings of a virtual function that the attachment has changed,
with the values of the network. The earlier values are not shown.

A NIC belongs to the network namespace that it was lent from, the host netns. --all
also lists attachments of other host netns than railctl's own (nested runtimes).

stderr names each NIC that was not returned as it was, and the settings that differ.

If a record, an RDMA device or a node file (/etc/rail-cni/node.yaml) cannot be read,
stderr names it, the rest is shown, and the exit code is 1.`,
		Example: `  railctl show
  railctl show -o json | jq -r '.[] | select(.state == "gone") | .nic'
  railctl show -o json | jq -r '.[] | .rdma.devices[]?.gids[]? | "\(.address) \(.index)"'
  railctl show -o json | jq -r '.[] | select(.vf) | "\(.pod) \(.vf.settings.VLAN)"'
  railctl show --all -o yaml`,
		Args: cobra.NoArgs,
	}
	s.format = addOutputFlag(cmd, "show")
	cmd.Flags().BoolVarP(&s.all, "all", "A", false, "also list attachments of other host network namespaces")
	cmd.Flags().BoolVarP(&s.wide, "wide", "w", false, "the same as -o wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.stateDir = *stateDir
		if *s.format == asWide {
			*s.format, s.wide = asTable, true
		}
		return s.run(cmd)
	}
	return cmd
}

// shown is one run of "railctl show".
type shown struct {
	format   *format
	all      bool
	wide     bool
	stateDir string
}

func (s *shown) run(cmd *cobra.Command) error {
	if err := requireRoot(); err != nil {
		return err
	}
	if !ledger.Exists(s.stateDir) {
		if *s.format == asTable {
			fmt.Fprintf(cmd.OutOrStdout(), "no attachments: there is no ledger at %s, so no plugin has used it since the node booted\n", s.stateDir)
			return nil
		}
		return s.format.print(cmd.OutOrStdout(), []inventory.Attachment{}, nil)
	}
	list, err := inventory.Collect(s.stateDir, s.all)
	if err != nil {
		return err
	}
	if err := s.print(cmd, list.Attachments); err != nil {
		return err
	}
	if list.Others > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d attachment(s) of other host network namespaces not shown; --all shows them\n", program, list.Others)
	}
	printReturned(cmd, list.Returned)
	return reportErrors(cmd.ErrOrStderr(), list.Errors)
}

// printReturned prints the NICs that were not returned as they were.
func printReturned(cmd *cobra.Command, changed []*ledger.Returned) {
	out := forPeople{cmd.ErrOrStderr()}
	for _, r := range changed {
		fmt.Fprintf(out, "%s: %s was returned, but not as it was, since %s (%s):\n", program, r.NIC, r.Time.Format(time.RFC3339), r.Holder)
		for _, c := range r.Changed {
			fmt.Fprintf(out, "  %s\n", c)
		}
		fmt.Fprintf(out, "  (correct it, then remove %s)\n", r.File)
	}
}

func (s *shown) print(cmd *cobra.Command, list []inventory.Attachment) error {
	if len(list) == 0 && *s.format == asTable {
		fmt.Fprintln(cmd.OutOrStdout(), "no attachments")
		return nil
	}
	hasRDMA := slices.ContainsFunc(list, func(a inventory.Attachment) bool { return a.RDMA != nil })
	hasVF := slices.ContainsFunc(list, func(a inventory.Attachment) bool { return a.VF != nil })
	rows := [][]string{s.header(hasRDMA, hasVF)}
	for i := range list {
		rows = append(rows, s.row(&list[i], hasRDMA, hasVF))
	}
	return s.format.print(cmd.OutOrStdout(), list, rows)
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

// settingsCell returns the settings of a virtual function, sorted by name: "VLAN 100, trust on".
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

// rdmaCells returns the columns of the table. Several devices or addresses share one.
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
