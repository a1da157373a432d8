package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// off is what switches a flag with a default off.
const off = "off"

// memoryLimit has the garbage collector keep the process below 40 MiB, of which
// a part is no heap.
const memoryLimit = 24 << 20

func newRun(a *agentFlags) *cobra.Command {
	var o agent.Options
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep this node: bring NICs of dead pods home at once, watch the plugins, tell of it",
		Long: `Keep this node, until SIGTERM. It runs as root, in the host's network
namespace, once for each node (several do no harm).

Attachments whose pod's network namespace is gone are ended as soon as the
kernel has brought their NIC back: restored, up, the addresses freed. So are
those that a reboot left in a state directory on a disk. What cannot be ended is
tried again after 1 s, 2 s, … 5 min, and told of once: in the log, in the metric
rail_cni_not_home, and as an Event of the node where an API server is named.
Addresses that a DEL left to the journal are freed when the server is back.

--cni-bin watches that the plugins there are those in --own, byte by byte, and
tells when something has replaced or removed them; with --restore-binaries it
puts its own there.

At --metrics it serves /metrics for Prometheus (with the RDMA counters of each
port, and the pod that has it), /healthz and /readyz; at --socket the same and
/status, for root only.`,
		Example: `  rail-agent run
  rail-agent run --cni-bin /opt/cni/bin --own /usr/local/lib/rail-cni --restore-binaries
  curl --unix-socket /run/rail-cni/agent.sock http://agent/status`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Metrics, "metrics", "127.0.0.1:9400", `address of /metrics, /healthz and /readyz; "off" for none`)
	flags.StringVar(&o.Socket, "socket", "", `path of the socket for railctl; "agent.sock" in the first state directory, "off" for none`)
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that gets Events; else $KUBECONFIG, else a pod's service account, else none does")
	flags.StringVar(&o.NodeName, "node", "", "the node's name in the cluster and in metrics; else $NODE_NAME, else the host's")
	flags.StringArrayVar(&o.BinDirs, "cni-bin", nil, "CNI directory whose plugins are watched; may be given several times")
	flags.StringVar(&o.Own, "own", "", "directory with the plugins as they should be; that of the agent's program when missing")
	flags.BoolVar(&o.Restore, "restore-binaries", false, "put the plugins of --own into each --cni-bin, whenever they are not there")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.keep(cmd.Context(), o, kubeconfig) }
	return cmd
}

// keep runs the keeper with what the flags say, and what is to be had where
// they say nothing.
func (a *agentFlags) keep(ctx context.Context, o agent.Options, kubeconfig string) error {
	if os.Geteuid() != 0 {
		return errors.New("the ledger and the network namespaces are root's; run it as root")
	}
	debug.SetMemoryLimit(memoryLimit)
	o.StateDirs, o.Version, o.Log = a.stateDirs, version, a.log
	if o.Socket == "" {
		o.Socket = filepath.Join(o.StateDirs[0], "agent.sock")
	}
	for _, f := range []*string{&o.Socket, &o.Metrics} {
		if *f == off {
			*f = ""
		}
	}
	o.NodeName = cmp.Or(o.NodeName, os.Getenv("NODE_NAME"))
	if o.NodeName == "" {
		var err error
		if o.NodeName, err = os.Hostname(); err != nil {
			return err
		}
	}
	if o.Own == "" {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		o.Own = filepath.Dir(program)
	}
	o.Journal = journal{stateDirs: o.StateDirs}
	kubeconfig = cmp.Or(kubeconfig, os.Getenv("KUBECONFIG"))
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "rail-agent/" + version})
	switch {
	case err == nil:
		events := newEvents(client, o.NodeName, a.log)
		go events.run(ctx)
		o.Teller = events
	case kubeconfig != "":
		return err
	default:
		a.log.Info("no Events: no --kubeconfig, and this is no pod with a service account")
	}
	return agent.Run(ctx, o)
}
