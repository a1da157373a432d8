// Package diagnose has the commands of railctl that find what is wrong with the rails: doctor,
// check, report, support-bundle and verify. They only read, except that verify starts pods, which
// send traffic.
package diagnose

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	facts "github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// doctorFlags are the flags that "railctl doctor" shares with its subcommands.
type doctorFlags struct {
	cluster.Flags
	stateDir *string
	facts    string
	alone    bool // the API server is not asked
}

// judgeFlags are the flags of all commands that judge facts.
type judgeFlags struct {
	only, ignore []string
	verbose      bool
	strict       bool
	format       *cli.Format
}

func (j *judgeFlags) add(cmd *cobra.Command, path string) {
	flags := cmd.Flags()
	flags.StringSliceVar(&j.only, "only", nil, "check only the rules with these IDs")
	flags.StringSliceVar(&j.ignore, "ignore", nil, "skip the rules with these IDs")
	flags.BoolVarP(&j.verbose, "verbose", "v", false, "also list the rules that found nothing")
	flags.BoolVar(&j.strict, "strict", false, "also let warnings and missing facts change the exit code")
	j.format = cli.AddOutputFlag(cmd, path)
	var ids []string
	for _, r := range doctor.Rules() {
		ids = append(ids, r.ID)
	}
	for _, name := range []string{"only", "ignore"} {
		// An error is possible only if the flag does not exist.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(ids, cobra.ShellCompDirectiveNoFileComp))
	}
}

const exitCodesHelp = `The exit code is 1 if a rule failed, 2 if nothing could be checked, and otherwise
0. With --strict, it is also 1 if a rule warned, and 2 if a fact is missing and no
rule failed or warned. Custom plugins of node-problem-detector use the same exit
codes.`

// NewDoctor returns the command "railctl doctor".
func NewDoctor(stateDir *string) *cobra.Command {
	d := &doctorFlags{stateDir: stateDir}
	var j judgeFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with the rails of this node, and how to fix it",
		Long: `Read facts about this node and check them by rules. The rules check the host, its
NICs, the ledger, the plugins, rail-agent, the device plugins, the pods that hold a
NIC, and the networks. Each finding has its evidence, its consequence and its cure.
The command changes nothing.

A rule that lacks a fact is unknown, and never ok. To read all facts, run the
command as root in the host's network and PID namespaces. With a kubeconfig, it
also reads the node's resources and the networks of the cluster. With --facts, it
checks facts that "railctl doctor collect" has printed. This works on any machine.

` + exitCodesHelp,
		Example: `  railctl doctor
  railctl doctor -o json | jq -r '.results[] | select(.status == "fail") | .id'
  railctl doctor collect > facts.json && railctl doctor --facts facts.json`,
		Args:        cobra.NoArgs,
		Annotations: cli.Judges,
	}
	j.add(cmd, "doctor")
	d.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rules, err := j.rules(doctor.Rules())
		if err != nil {
			return err
		}
		f, err := d.read(cmd)
		if err != nil {
			return err
		}
		scopes := []rule.Scope{rule.NodeScope, rule.PodScope, rule.ConfigScope}
		if f.Cluster != nil {
			scopes = append(scopes, rule.ClusterScope)
		}
		return j.report(cmd, f, rule.Judge(rule.Select(rules, scopes...), f))
	}
	cmd.AddCommand(newDoctorPod(d), newDoctorCluster(), newDoctorCollect(d))
	return cli.WithNode(cmd, &d.Flags)
}

// addTo adds the flags that say where the facts are.
func (d *doctorFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.facts, "facts", "", `file with facts that "railctl doctor collect" has printed, "-" for stdin (default: read this node's facts)`)
	d.addKubeconfig(cmd)
}

// addKubeconfig adds the flags about the cluster. The doctor does not use the kubeconfig of the
// plugins. The account of that kubeconfig has only the rights to allocate addresses, and must not
// get more rights.
func (d *doctorFlags) addKubeconfig(cmd *cobra.Command) {
	d.WithoutPlugins = true
	cli.AddClusterFlags(cmd, &d.Flags)
}

func newDoctorCollect(d *doctorFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Print the facts of this node as JSON",
		Long: `Print the facts that "railctl doctor" checks. Each fact names its source. A fact
that could not be read has the error instead of a value, and the exit code is still
0. The document contains the names of hosts and pods, and addresses. For pods with
a NIC it also contains environment variables, but only the variables of NCCL, UCX,
NVSHMEM, GLOO and rail-cni.`,
		Example: `  railctl doctor collect > facts.json
  railctl doctor collect | jq '.nics.list.value[] | {name, carrier: .carrier.value}'`,
		Args: cobra.NoArgs,
	}
	var flags doctorFlags
	var ofCluster bool
	var agents string
	cmd.Flags().BoolVar(&ofCluster, "cluster", false, "print the facts of the cluster and of all its nodes, for railctl doctor cluster")
	cmd.Flags().StringVar(&agents, "agent-namespace", cli.DefaultAgentNamespace, "with --cluster: namespace of rail-agent's pods")
	flags.addKubeconfig(cmd)
	cmd.Flags().StringVarP(&flags.Namespace, "namespace", "n", "",
		"with --cluster: namespace of the address pools (default: the namespace of the kubeconfig's context, or kube-system)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags.stateDir = d.stateDir
		read := flags.read
		if ofCluster {
			read = func(cmd *cobra.Command) (*fact.Facts, error) { return flags.readCluster(cmd, agents) }
		}
		f, err := read(cmd)
		if err != nil {
			return err
		}
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(f)
	}
	return cmd
}

// read returns the facts in the file of --facts. Without --facts it reads the facts of this node.
func (d *doctorFlags) read(cmd *cobra.Command) (*fact.Facts, error) {
	if d.facts != "" {
		in := cmd.InOrStdin()
		if d.facts != "-" {
			file, err := os.OpenFile(d.facts, os.O_RDONLY|unix.O_NONBLOCK, 0) // non-blocking, because the file may be a FIFO
			if err != nil {
				return nil, err
			}
			defer file.Close()
			in = file
		}
		f, err := fact.Decode(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.facts, err)
		}
		return f, nil
	}
	o := facts.Options{
		StateDir: *d.stateDir, Node: os.Getenv("NODE_NAME"), Version: cli.Version, Socket: local.SocketIn(*d.stateDir),
		Functions: true,
	}
	if !d.alone {
		o.Client, o.NoClient = d.Open(cli.UserAgent())
	}
	switch {
	case d.alone:
	case o.NoClient != nil:
		if d.Named() {
			return nil, o.NoClient
		}
		o.NoClient = nil // no API server is used, which is not an error
	default:
		o.OfPod = !d.Named()
	}
	bar := cli.NewProgress(cmd.ErrOrStderr())
	o.Done = bar.Show("facts: %d of %d read")
	defer bar.Clear()
	return facts.Node(cmd.Context(), o), nil
}

// rules returns the rules that --only names, or all rules without --only. It returns an error for
// an unknown ID.
func (j *judgeFlags) rules(all []rule.Rule) ([]rule.Rule, error) {
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	for _, list := range [][]string{j.only, j.ignore} {
		for i, id := range list {
			list[i] = strings.ToUpper(strings.TrimSpace(id))
			if !slices.Contains(ids, list[i]) {
				return nil, fmt.Errorf("there is no rule %s; \"railctl doctor -v\" lists the rules", cell.Printable(id))
			}
		}
	}
	if len(j.only) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(r rule.Rule) bool { return !slices.Contains(j.only, r.ID) }), nil
}

// report prints the notes and then the results. It returns an error that carries the exit code.
func (j *judgeFlags) report(cmd *cobra.Command, f *fact.Facts, results []rule.Result, notes ...string) error {
	rule.Skip(results, j.ignore)
	out := cmd.OutOrStdout()
	document := doctor.NewDocument(f, results)
	document.Notes = append(document.Notes, notes...)
	err := cli.WriteAs(*j.format, out, document.WriteJSON, func(w io.Writer) error {
		if *j.format == cli.Line {
			return doctor.WriteLine(w, results)
		}
		return doctor.WriteText(w, results, doctor.TextOptions{Verbose: j.verbose, Color: cli.Colored(out), Notes: document.Notes})
	})
	if err != nil {
		return err
	}
	if code := doctor.ExitCode(results, j.strict); code != doctor.ExitOK {
		return cli.ExitCode(code)
	}
	return nil
}
