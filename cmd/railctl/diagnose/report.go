package diagnose

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/page"
)

// NewReport returns the command "railctl report".
func NewReport(stateDir *string) *cobra.Command {
	d := &doctorFlags{stateDir: stateDir}
	var file string
	var stored []string
	cmd := &cobra.Command{
		Use:   "report --html FILE [--facts FILE]...",
		Short: "Write one HTML page about the rails of this node, or of several nodes",
		Long: `Write a page with the findings of "railctl doctor", a table of the node's NICs, and
the picture of "railctl topology --svg". The table shows the rail, state, speed,
errors and holder of each NIC. The page is one file. It loads no other files, has
no script, and can be printed.

With --facts, the page is about facts that "railctl doctor collect" has printed,
and the command runs on any machine. Such a page has no picture. If --facts names
several files, or the output of "railctl doctor collect --cluster", the page begins
with a matrix of nodes and rails, and also has the findings of the rules for
clusters.

The exit code is 0 if the page was written, even if it has findings.`,
		Example: `  railctl report --html node.html
  railctl report --html nodes.html --facts node-1.json --facts node-2.json
  railctl doctor collect --cluster | railctl report --html cluster.html --facts -`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&file, "html", "", `write the page to FILE; "-" is stdout`)
	cmd.Flags().StringArrayVar(&stored, "facts", nil, `file with facts that "railctl doctor collect" has printed, "-" for stdin; may be repeated`)
	d.addKubeconfig(cmd)
	_ = cmd.MarkFlagRequired("html") // fails only for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var picture []byte
		var all []*fact.Facts
		if len(stored) == 0 {
			stored = []string{""} // "" stands for this node
			picture = d.picture(cmd.ErrOrStderr())
		}
		for _, name := range stored {
			one := *d
			one.facts = name
			f, err := one.read(cmd)
			if err != nil {
				return err
			}
			all = append(all, f)
		}
		nodes, results, err := judgeAll(all)
		if err != nil {
			return err
		}
		text, err := page.Report(nodes, results, picture, cli.Version)
		if err != nil {
			return err
		}
		return cli.WriteFile(cmd.OutOrStdout(), file, text)
	}
	return cmd
}

// picture returns the picture of this node. It returns nil if the node's NICs cannot be read. Then
// the page has only what is in the facts.
func (d *doctorFlags) picture(stderr io.Writer) []byte {
	err := cli.RequireRoot()
	if err == nil {
		var list *inventory.NICList
		if list, err = inventory.NICs(*d.stateDir); err == nil {
			return page.Topology(list, "GPUs and NICs of this node", "")
		}
	}
	cli.Note(stderr, "the page has no picture of the node: %v", err)
	return nil
}

// judgeAll returns the results of all rules for the facts, and the facts of each node. The nodes of
// a cluster are returned one by one. judgeAll returns an error if two facts are from the same node,
// because they would look like two nodes with the same addresses.
func judgeAll(all []*fact.Facts) (nodes []*fact.Facts, results []rule.Result, err error) {
	for _, f := range all {
		if f.Cluster == nil {
			nodes = append(nodes, f)
			continue
		}
		nodes = append(nodes, slices.DeleteFunc(slices.Clone(f.Cluster.Nodes), func(n *fact.Facts) bool { return n == nil })...)
	}
	seen := map[string]bool{}
	for _, n := range nodes {
		if seen[n.Node] {
			return nil, nil, fmt.Errorf("two files have the facts of node %s; name only one file for each node", cell.Printable(n.Node))
		}
		seen[n.Node] = true
	}
	switch {
	case len(all) == 1 && all[0].Cluster != nil:
		results = judgeCluster(doctor.Rules(), all[0])
	case len(nodes) > 1:
		results = judgeCluster(doctor.Rules(), &fact.Facts{Schema: fact.Schema, Cluster: &fact.Cluster{Nodes: nodes}})
	case len(nodes) == 1:
		results = rule.Judge(rule.Select(doctor.Rules(), rule.NodeScope, rule.PodScope, rule.ConfigScope), nodes[0])
	}
	return nodes, results, nil
}
