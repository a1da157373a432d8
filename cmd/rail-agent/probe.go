package main

import (
	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
)

func newProbe(a *agentFlags) *cobra.Command {
	var socket string
	var live bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Ask the agent of this node whether it is ready",
		Long: `Ask the agent of this node, through its socket, whether it is ready. It is ready
when it has checked every record, and has installed or uninstalled the plugins if
its flags say so. With --live, ask only whether the agent is still working. If the
answer is no, the reason is printed, and the exit code is 1. The kubelet's probes
run this command. They do not ask a port on the host's loopback, because the port
may belong to another process.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&socket, "socket", "", `path of the agent's socket (default: "agent.sock" in the first state directory)`)
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the agent is still working")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if socket == "" {
			socket = local.SocketIn(a.stateDirs[0])
		}
		if live {
			return local.ProbeLive(cmd.Context(), socket)
		}
		return local.ProbeReady(cmd.Context(), socket)
	}
	return cmd
}
