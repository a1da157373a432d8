package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/keeper"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// doctorFlags are the flags of "run" for the doctor's rules.
type doctorFlags struct {
	doctor    string
	interval  time.Duration
	condition bool
}

func (f *doctorFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.doctor, "doctor", on, `check the node by the rules of "railctl doctor"; sets metrics, and sends Events when something changes; "off" for no checks`)
	flags.DurationVar(&f.interval, "doctor-interval", time.Minute, "time between two runs of the fast rules, at most 15m; the slow rules run every fifth time")
	flags.BoolVar(&f.condition, "node-condition", false, "also keep the condition "+keeper.ConditionType+" of the Node; needs the right to patch nodes/status")
}

// errNoRights is the reason why facts about the cluster are missing.
var errNoRights = errors.New("rail-agent has no right to read it; run railctl doctor cluster, which reads it with your account")

// maxInterval is the maximum of --doctor-interval. It is short enough that the alert
// RailDoctorSilent, which fires after 30 minutes, does not fire.
const maxInterval = 15 * time.Minute

// components returns the doctor. If the doctor's rules are off, the doctor still serves the node's
// facts at the socket. status returns the status of the agent.
func (f *doctorFlags) components(h *host, install *installFlags, status func() ([]byte, error)) ([]component.Component, error) {
	if f.doctor != on && f.doctor != off {
		return nil, fmt.Errorf("--doctor is %q; it must be %s or %s", f.doctor, on, off)
	}
	if f.interval < time.Second || f.interval > maxInterval {
		return nil, fmt.Errorf("--doctor-interval is %v; it must be between 1s and %v", f.interval, maxInterval)
	}
	options := keeper.Options{Log: h.log, Notify: h.notify, Every: f.interval, Status: status, Leaving: install.uninstall, Collect: collect.Options{
		StateDir: h.stateDirs[0], Node: h.name, Version: version, Root: collect.NodeRoot(), ConfDir: install.credential.confDir, InstallDir: install.record,
		Socket: h.socket, NoClient: errNoRights,
	}}
	if len(h.binDirs) > 0 {
		options.Collect.BinDir = h.binDirs[0]
	}
	if f.condition {
		if h.client == nil {
			return nil, errors.New("--node-condition needs a cluster; name a kubeconfig with --kubeconfig")
		}
		options.Condition = func(ctx context.Context, c *keeper.Condition) error {
			var one any = c
			if c == nil {
				one = map[string]string{"type": keeper.ConditionType, "$patch": "delete"}
			}
			_, err := h.client.PatchStatus(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, h.name, map[string]any{"conditions": []any{one}})
			return err
		}
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	reader := &collect.Reader{Command: []string{program, readCommand}}
	options.Read = reader.Node
	return []component.Component{keeper.New(options).Component(f.doctor == on)}, nil
}

// readCommand is the name of the hidden command that reads facts in a separate process for the
// agent.
const readCommand = "read-facts"

func newReadFacts() *cobra.Command {
	return &cobra.Command{
		Use: readCommand, Short: "Read the facts of this node in a separate process, for run", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return collect.ReadFor(cmd.Context(), os.Stdin, os.Stdout) },
	}
}

func newFacts(a *agentFlags) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "Print the facts of this node, as the agent reads them",
		Long: `Ask the agent of this node, through its socket, for the facts that "railctl doctor"
checks, and print them as JSON. "railctl doctor cluster" runs this command in the
agent's pod on each node. Unlike the facts of "railctl doctor collect", these facts
include how often NICs lost their carrier in the last 12 hours, because only the
agent counts this.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&socket, "socket", "", `path of the agent's socket (default: "agent.sock" in the first state directory)`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return local.CopyFacts(cmd.Context(), cmp.Or(socket, local.SocketIn(a.stateDirs[0])), cmd.OutOrStdout())
	}
	return cmd
}
