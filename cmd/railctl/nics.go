package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

func newNICs(stateDir *string) *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "nics",
		Short: "List the NICs of this node, lent or not, with their RDMA devices and nearest GPUs",
		Long: `List the NICs of this node that have a parent device. The list contains NICs on the
host and NICs that are lent. For a lent NIC it shows the pod that has the NIC.

LINK is "up" if the interface is up and has a carrier, "-" if this cannot be read,
and otherwise "down". RDMA is the RDMA device and port of the interface. STATE is
the state of this port. HOLDER is the pod that has the NIC, or the number of child
interfaces on the NIC. GPU is the nearest GPU with its distance, in the
abbreviations of nvidia-smi:

  PIX   between NIC and GPU is at most one PCIe switch
  PXB   several PCIe switches
  PHB   the host bridge, usually in the CPU
  NODE  several host bridges of one NUMA node
  SYS   the link between NUMA nodes

RAIL is the number of the NIC's rail in the node file. With -o wide, the table also
has the model, the MAC, the MTU, the firmware, the resources that offer the NIC,
and all GPUs at the smallest distance. If the name of the model is unknown, its PCI
IDs are shown. A function with a userspace driver has no interface and no name.

Problems with the rails and resources of the node file, for example a selector that
matches no NIC, are printed on stderr. They do not change the exit code.

The list has the NICs in railctl's own network namespace, the NICs that were lent
from this namespace, and the functions without an interface. If something cannot be
read, the error is printed on stderr, the rest is listed, and the exit code is 1.`,
		Example: `  railctl nics -o wide
  railctl nics -o json | jq -r '.[] | select(.lent == null) | .pci'
  railctl nics -o json | jq -r '.[] | "\(.name) \(.gpus[0].uuid // .gpus[0].pci)"'`,
		Args: cobra.NoArgs,
	}
	format := cli.AddOutputFlag(cmd, "nics")
	cmd.Flags().BoolVarP(&wide, "wide", "w", false, "the same as -o wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.RequireRoot(); err != nil {
			return err
		}
		if *format == cli.Wide {
			*format, wide = cli.Table, true
		}
		list, err := inventory.NICs(*stateDir)
		if err != nil {
			return err
		}
		pools, problems, err := list.Pools()
		if err != nil {
			list.Errors = append(list.Errors, err)
		}
		if len(list.NICs) == 0 && *format == cli.Table {
			fmt.Fprintln(cmd.OutOrStdout(), "no NICs: no interface in this network namespace has a parent device, and no NIC is lent")
		} else if err := format.Print(cmd.OutOrStdout(), list.NICs, nicRows(list.NICs, pools, wide)); err != nil {
			return err
		}
		for _, p := range problems {
			cli.Note(cmd.ErrOrStderr(), "%s", problemLine(p))
		}
		return cli.ReportErrors(cmd.ErrOrStderr(), list.Errors)
	}
	return cmd
}

// problemLine returns a problem with the node file in one line.
func problemLine(p resource.Problem) string {
	if p.Resource == "" {
		return fmt.Sprintf("%s: %s", p.Reason, cell.Printable(p.Message))
	}
	return fmt.Sprintf("resource %s: %s: %s", cell.Printable(p.Resource), p.Reason, cell.Printable(p.Message))
}

func nicRows(list []inventory.NIC, pools []resource.Pool, wide bool) [][]string {
	header := []string{"NIC", "PCI", "RAIL", "NUMA", "DRIVER", "SPEED", "LINK", "RDMA", "STATE", "GPU", "HOLDER"}
	if wide {
		header = append(header, "MODEL", "MAC", "MTU", "FIRMWARE", "RESOURCE")
	}
	rows := [][]string{header}
	for i := range list {
		n := &list[i]
		row := []string{
			cell.Printable(n.Name), n.PCI, cell.Number(n.Rail), cell.Number(n.NUMA), n.Driver, cell.Speed(n.Mbps), n.Link,
			n.PortNames(), n.PortStates(), gpuCell(n, wide), n.Holder(),
		}
		if wide {
			row = append(row, cmp.Or(n.Model, n.PCIID()), n.MAC, mtuCell(n.MTU), cell.Printable(n.Firmware), resourceCell(n, pools))
		}
		rows = append(rows, row)
	}
	return rows
}

// resourceCell returns the resources that offer the NIC. No resource offers a subfunction.
func resourceCell(n *inventory.NIC, pools []resource.Pool) string {
	var names []string
	for _, p := range pools {
		if n.Auxiliary == "" && !n.Representor && n.PCI != "" && slices.ContainsFunc(p.NICs, func(member resource.NIC) bool { return member.PCI == n.PCI }) {
			names = append(names, p.Resource)
		}
	}
	return cell.List(names)
}

// gpuCell returns the nearest GPU. With all, it returns all GPUs at the same distance as the
// nearest.
func gpuCell(n *inventory.NIC, all bool) string {
	var nearest []string
	for _, g := range n.GPUs {
		if g.Distance == n.GPUs[0].Distance && (all || len(nearest) == 0) {
			nearest = append(nearest, g.PCI)
		}
	}
	if len(nearest) == 0 {
		return ""
	}
	return n.GPUs[0].Distance.String() + " " + strings.Join(nearest, ",")
}

// mtuCell returns the MTU as text. It returns "" if the MTU is not known.
func mtuCell(mtu int) string {
	if mtu == 0 {
		return ""
	}
	return strconv.Itoa(mtu)
}
