package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/page"
)

func newTopology(stateDir *string) *cobra.Command {
	var svg, pod string
	var output *cli.Format
	cmd := &cobra.Command{
		Use:   "topology [--pod NAMESPACE/NAME] [--svg [FILE]]",
		Short: "Print or draw the distances between the node's GPUs and NICs, including lent NICs",
		Long: `Print a matrix of the node's GPUs and NICs, as "nvidia-smi topo -m" does. The
command does not need NVIDIA's driver, and it includes lent NICs. "railctl nics
--help" explains the distances. A legend names the devices. The command knows the
GPUs of NVIDIA and AMD, and Gaudi.

With --svg, the command draws an SVG instead. It shows the NUMA nodes, host bridges
and PCIe switches with their GPUs and NICs, and the rail, RDMA devices, state and
holder of each NIC. The SVG needs no other file. It is written to FILE, or to
stdout.

With --pod, the matrix has all GPUs, but only the NICs that the pod holds. The SVG
has all NICs. In the SVG, the pod's NICs have a second border, and show the nearest
GPUs of the node, because railctl does not know which GPUs the pod has. A pod with
only macvlans holds no NIC.`,
		Example: `  railctl topology
  railctl topology --pod default/trainer-0 --svg trainer-0.svg
  railctl topology --svg node-1.svg`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && svg != cli.Stdout {
				return fmt.Errorf("unknown argument %q", args[len(args)-1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.RequireRoot(); err != nil {
				return err
			}
			list, err := inventory.NICs(*stateDir)
			if err != nil {
				return err
			}
			if err := checkHolds(list, pod); err != nil {
				return errors.Join(append(list.Errors, err)...)
			}
			switch {
			case svg == "" && *output != cli.Table:
				err = output.Print(cmd.OutOrStdout(), matrix(list, pod), nil)
			case *output != cli.Table:
				err = errors.New("--output and --svg exclude each other")
			case svg == "":
				err = printTopology(cmd, list, pod)
			case len(args) == 1:
				err = writeSVG(cmd.OutOrStdout(), args[0], list, pod)
			default:
				err = writeSVG(cmd.OutOrStdout(), svg, list, pod)
			}
			if err != nil {
				return err
			}
			return cli.ReportErrors(cmd.ErrOrStderr(), list.Errors)
		},
	}
	cmd.Flags().StringVar(&svg, "svg", "", "draw an SVG and write it to `FILE`; \"-\" is stdout")
	cmd.Flags().StringVar(&pod, "pod", "", "print only the NICs of the pod `NAMESPACE/NAME`; with --svg, mark these NICs")
	output = cli.AddOutputFlag(cmd, "topology")
	cmd.Flags().Lookup("svg").NoOptDefVal = cli.Stdout // the file may also follow as an argument
	return cmd
}

// checkHolds returns an error if the pod holds no NIC. If pod is "", it returns nil.
func checkHolds(list *inventory.NICList, pod string) error {
	if pod == "" || slices.ContainsFunc(list.NICs, func(n inventory.NIC) bool { return n.LentTo(pod) }) {
		return nil
	}
	return fmt.Errorf("--pod %s: no pod with this NAMESPACE/NAME holds a NIC of this node; \"railctl show\" lists the attachments", cell.Printable(pod))
}

// writeSVG writes the picture of the node to a file or to stdout.
func writeSVG(stdout io.Writer, file string, list *inventory.NICList, pod string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "this node"
	}
	return cli.WriteFile(stdout, file, page.Topology(list, "GPUs and NICs of "+host, pod))
}

// place is one device in the matrix, which has a row and a column.
type place struct {
	short, pci, legend string
}

// places returns all GPUs, and the NICs that the pod holds. If pod is "", it returns all NICs.
func places(list *inventory.NICList, pod string) []place {
	var all []place
	for i, g := range list.GPUs {
		all = append(all, place{fmt.Sprintf("GPU%d", i), g.Address, g.Address})
	}
	for i := range list.NICs {
		n := &list.NICs[i]
		if n.PCI == "" || pod != "" && !n.LentTo(pod) {
			continue
		}
		legend := n.PCI
		if n.Name != "" {
			legend += " " + cell.Printable(n.Name)
		}
		if names := n.PortNames(); names != "" {
			legend += " " + names
		}
		if holder := n.Holder(); holder != "" {
			legend += " (" + holder + ")"
		}
		all = append(all, place{fmt.Sprintf("NIC%d", len(all)-len(list.GPUs)), n.PCI, legend})
	}
	return all
}

// placeShown is a row of the matrix in JSON.
type placeShown struct {
	Name      string            `json:"name"` // "GPU0", "NIC3"
	PCI       string            `json:"pci"`
	Legend    string            `json:"legend"`
	NUMA      *int              `json:"numa,omitempty"`
	Distances map[string]string `json:"distances"` // the key is the name of the other device
}

// matrix returns the rows of the matrix for JSON.
func matrix(list *inventory.NICList, pod string) []placeShown {
	all := places(list, pod)
	rows := []placeShown{}
	for i, row := range all {
		shown := placeShown{Name: row.short, PCI: row.pci, Legend: row.legend, Distances: map[string]string{}}
		if d := list.Tree.ByAddress(row.pci); d != nil && d.NUMA >= 0 {
			shown.NUMA = &d.NUMA
		}
		for k, column := range all {
			if i != k {
				shown.Distances[column.short] = list.Tree.Distance(row.pci, column.pci).String()
			}
		}
		rows = append(rows, shown)
	}
	return rows
}

func printTopology(cmd *cobra.Command, list *inventory.NICList, pod string) error {
	all := places(list, pod)
	out := cmd.OutOrStdout()
	if len(all) == 0 {
		fmt.Fprintln(out, "no GPUs, and no NICs with a PCI function")
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, column := range all {
		fmt.Fprintf(t, "\t%s", column.short)
	}
	fmt.Fprintln(t, "\tNUMA")
	for i, row := range all {
		fmt.Fprint(t, row.short)
		for k, column := range all {
			text := "X"
			if i != k {
				text = list.Tree.Distance(row.pci, column.pci).String()
			}
			fmt.Fprintf(t, "\t%s", text)
		}
		numa := "-"
		if d := list.Tree.ByAddress(row.pci); d != nil && d.NUMA >= 0 {
			numa = fmt.Sprint(d.NUMA)
		}
		fmt.Fprintf(t, "\t%s\n", numa)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, p := range all {
		fmt.Fprintf(out, "%s = %s\n", p.short, p.legend)
	}
	return nil
}
