package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/keeper"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// doctorFlags are the flags of "run" about the doctor's rules.
type doctorFlags struct {
	doctor    string
	interval  time.Duration
	condition bool
}

func (f *doctorFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.doctor, "doctor", on, `judge the node by the rules of "railctl doctor": metrics, and Events when something changes; "off" turns it off`)
	flags.DurationVar(&f.interval, "doctor-interval", time.Minute, "time between two runs of the fast rules; the slow ones are in each fifth run; at most 15m")
	flags.BoolVar(&f.condition, "node-condition", false, "also keep the condition "+keeper.ConditionType+" of the Node; needs the right to patch nodes/status")
}

// errNoRights is the reason why facts of the cluster are missing.
var errNoRights = errors.New("rail-agent has no right to read it; railctl doctor cluster does")

// mostInterval bounds --doctor-interval: after 30 minutes the alert RailDoctorSilent fires.
const mostInterval = 15 * time.Minute

// begin starts the doctor in beside, unless it is off. A panic of it does not end the keeper of
// NICs. The socket serves the node's facts in any case.
func (f *doctorFlags) begin(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, client *kube.Client, confDir, record string) error {
	if f.doctor != on && f.doctor != off {
		return fmt.Errorf("--doctor is %q; it must be %s or %s", f.doctor, on, off)
	}
	if f.interval < time.Second || f.interval > mostInterval {
		return fmt.Errorf("--doctor-interval %v: it must be between 1s and %v", f.interval, mostInterval)
	}
	options := keeper.Options{Log: o.Log, Every: f.interval, Collect: collect.Options{
		StateDir: o.StateDirs[0], Node: o.NodeName, Version: o.Version, Root: collect.NodeRoot(), ConfDir: confDir, InstallDir: record,
		Socket: o.Socket, NoClient: errNoRights,
	}}
	if len(o.BinDirs) > 0 {
		options.Collect.BinDir = o.BinDirs[0]
	}
	if o.Teller != nil {
		options.Tell = o.Teller.Tell
	}
	if f.condition {
		if client == nil {
			return errors.New("--node-condition needs a cluster: name it by --kubeconfig")
		}
		options.Condition = func(ctx context.Context, c *keeper.Condition) error {
			var one any = c
			if c == nil {
				one = map[string]string{"type": keeper.ConditionType, "$patch": "delete"}
			}
			_, err := client.PatchStatus(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, o.NodeName, map[string]any{"conditions": []any{one}})
			return err
		}
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	reader := &collect.Reader{Command: []string{program, readCommand}}
	options.Read = reader.Node
	k := keeper.New(options)
	o.Facts, o.Running = k.Facts, k.Running
	if f.doctor == off {
		return nil
	}
	o.Doctor = k.Metrics
	beside.Go(func() { k.Run(ctx) })
	return nil
}

// readCommand is the command of the process that reads facts for the agent.
const readCommand = "read-facts"

func newReadFacts() *cobra.Command {
	return &cobra.Command{
		Use: readCommand, Short: "Read the facts of this node for run, in a process of its own", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return collect.ReadFor(cmd.Context(), os.Stdin, os.Stdout) },
	}
}

func newFacts(a *agentFlags) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "Print the facts of this node, as the agent knows them",
		Long: `Ask the agent of this node, by its socket, for the facts by which "railctl doctor"
judges the node, and print them as JSON. "railctl doctor cluster" runs this in the
agent's pod of each node. Unlike "railctl doctor collect" it has how often NICs lost
their carrier in the last 12 hours, which the agent remembers.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&socket, "socket", "", `path of the agent's socket; "agent.sock" in the first state directory when missing`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return agent.CopyFacts(cmd.Context(), cmp.Or(socket, agent.SocketIn(a.stateDirs[0])), cmd.OutOrStdout())
	}
	return cmd
}
