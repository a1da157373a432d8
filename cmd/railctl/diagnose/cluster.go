package diagnose

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	facts "github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func newDoctorCluster() *cobra.Command {
	var flags doctorFlags
	var j judgeFlags
	var agents string
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Find what is wrong with the rails of all nodes of a cluster",
		Long: `Read the facts of all nodes with a rail-agent, and check them by all rules. The
rules check each node with its pods and networks, and compare the nodes. The
command runs on any machine with a kubeconfig and does not need root: the API
server runs "rail-agent facts" in the agent's pod on each node. 32 nodes are asked
at the same time. Each node has 25 s to answer. A node that does not answer is a
finding, and the other nodes are still checked.

The account needs the rights to list pods, nodes, servicecidrs, ippools,
overlappingrangeipreservations and network-attachment-definitions. In the agents'
namespace it needs the rights to get and create pods/exec. An account with the
right to pods/exec can become root on the nodes. If the account may not read some
facts, these facts are missing, and rules that need them are unknown.

` + exitCodesHelp,
		Example: `  railctl doctor cluster
  railctl doctor cluster --only CLUSTER-MTU,RAIL-SWAP -o json
  railctl doctor collect --cluster > facts.json && railctl doctor cluster --facts facts.json`,
		Args: cobra.NoArgs,
	}
	j.add(cmd, "doctor cluster")
	cmd.Flags().StringVar(&flags.facts, "facts", "", `file with facts that "railctl doctor collect --cluster" has printed, "-" for stdin (default: ask the nodes)`)
	flags.WithoutPlugins = true
	cli.AddPoolFlags(cmd, &flags.Flags)
	cmd.Flags().StringVar(&agents, "agent-namespace", cli.DefaultAgentNamespace, "namespace of rail-agent's pods")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rules, err := j.rules(doctor.Rules())
		if err != nil {
			return err
		}
		f, err := flags.readCluster(cmd, agents)
		if err != nil {
			return err
		}
		return j.report(cmd, f, judgeCluster(rules, f))
	}
	return cmd
}

// readCluster returns the facts in the file of --facts. Without --facts it reads the facts of the
// cluster and of these nodes. If nodes is empty, it reads all nodes.
func (d *doctorFlags) readCluster(cmd *cobra.Command, agents string, nodes ...string) (*fact.Facts, error) {
	if d.facts != "" {
		f, err := d.read(cmd)
		if err == nil && f.Cluster == nil {
			err = fmt.Errorf("%s has the facts of one node; check them with railctl doctor --facts", cell.Printable(d.facts))
		}
		return f, err
	}
	client, err := d.Open(cli.UserAgent())
	if err != nil {
		return nil, err
	}
	o := facts.ClusterOptions{Client: client, AgentNamespace: agents, Nodes: nodes, Version: cli.Version}
	bar := cli.NewProgress(cmd.ErrOrStderr())
	o.Done = bar.Show("nodes: %d of %d read")
	defer bar.Clear()
	f, err := facts.Cluster(cmd.Context(), o)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// judgeCluster returns the results of the rules for clusters, and the results of the other rules
// for each node. If a rule for configurations has the same result on all nodes, the result is
// listed once and without a node, because the networks belong to the cluster.
func judgeCluster(rules []rule.Rule, f *fact.Facts) []rule.Result {
	results := rule.Judge(rule.Select(rules, rule.ClusterScope), f)
	configs := rule.Select(rules, rule.ConfigScope)
	var ofConfigs [][]rule.Result
	for _, n := range f.Cluster.Nodes {
		if n == nil { // possible in a file of --facts
			continue
		}
		results = append(results, rule.Judge(rule.Select(rules, rule.NodeScope, rule.PodScope), n)...)
		ofConfigs = append(ofConfigs, rule.Judge(configs, n))
	}
	if len(ofConfigs) == 0 {
		return results
	}
	for i := range configs {
		first := ofConfigs[0][i]
		if same := first; sameEverywhere(ofConfigs, i) {
			same.Node = ""
			results = append(results, same)
			continue
		}
		for _, node := range ofConfigs {
			results = append(results, node[i])
		}
	}
	return results
}

// sameEverywhere reports whether the results of the i-th rule differ only in the node.
func sameEverywhere(nodes [][]rule.Result, i int) bool {
	first := nodes[0][i]
	return !slices.ContainsFunc(nodes, func(results []rule.Result) bool {
		r := results[i]
		r.Node = first.Node
		return !reflect.DeepEqual(r, first)
	})
}
