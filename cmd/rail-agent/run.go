package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/agent/events"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/replay"
)

// The values of flags that turn something on or off.
const (
	on  = "on"
	off = "off"
)

// memoryLimit makes the garbage collector keep the process below 40 MiB, a part
// of which is not heap.
const memoryLimit = 24 << 20

// runHelp is the description of "run".
const runHelp = `Keep this node until SIGTERM. Run it as root in the host's network namespace,
once for each node. (Several do no harm.)

An attachment whose pod's network namespace is gone is ended as soon as the
kernel has returned its NIC: the NIC is restored, and its addresses are freed.
Attachments that a reboot left in a state directory on a disk are ended too. An
attachment that cannot be ended is tried again after 1 s, 2 s, … 5 min, and
reported once: in the log, in the metric rail_cni_nics_not_returned, and as an
Event of the node if there is a cluster. Addresses that a DEL left in the journal
are freed when the server is back.

The addresses of a pod whose carrier first comes after the end of its ADD are
announced to the neighbors. An RDMA device that its driver re-creates is moved
into its pod again.

For networks with block_size it publishes who has the addresses of this node's
blocks, and returns a block that has been empty for an hour. Every five minutes
it asks the API server whether the blocks are still the node's.

--cni-bin watches that the plugins there are equal to those in --own, and reports
those that something has replaced or removed. With --restore-binaries the agent
puts its own there. --install installs them to begin with, keeps what was there
before, and writes files below --cni-conf: the kubeconfig of the plugin
whereabouts, whose token it renews, and the flat file that leads to it.
--uninstall undoes that on a node without pods that need it. Until then it goes
on keeping the node.

While "resources" of the node file has a pool, the agent is a device plugin: it
offers the NICs of the pools to the kubelet at --kubelet-dir.

For each pod with rails it writes what NCCL and other programs need to know: files
in "pods" below the first state directory and, with "publish: {annotation: true}"
in the node file, the annotation rail-cni.io/rails. "railctl pod" prints the same.

With "prefixesFrom: [nv-ipam]" in the node file it reads which prefixes nv-ipam's
CIDRPools give the node, and writes them to "prefixes" below each state directory,
where the plugins read them.

If the container runtime has NRI (--nri-socket), containers of such a pod get
environment variables, the files, locked memory without limit and the char devices
of the pod's RDMA devices. Other containers stay as they are.

It judges the node by the rules of "railctl doctor" (--doctor): the metric
rail_doctor_rule, Events when a problem begins or ends and, with --node-condition,
the condition RailNetworkReady of the Node.

--reconcile does the work of "rail-agent ipam".

At --metrics it serves /metrics for Prometheus (with the RDMA counters of each
port, and the pod that has the port), /healthz and /readyz. With --metrics-secure
it serves them by HTTPS, and /metrics only to accounts that the cluster allows. At
--socket it serves the same, /status and /facts, for root only. It is ready when it has
checked everything, and has done what --install, --cni-conf or --uninstall say.`

func newRun(a *agentFlags) *cobra.Command {
	var o agent.Options
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep this node: return NICs of dead pods at once, watch the plugins, report",
		Long:  runHelp,
		Example: `  rail-agent run
  rail-agent run --cni-bin /opt/cni/bin --own /usr/local/lib/rail-cni --restore-binaries
  rail-agent run --cni-bin /opt/cni/bin --own /usr/local/lib/rail-cni --install --prefix rail-
  curl --unix-socket /run/rail-cni/agent.sock http://agent/status`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Metrics, "metrics", "127.0.0.1:9400", `address of /metrics, /healthz and /readyz; "off" for none`)
	flags.StringVar(&o.Socket, "socket", "", `path of the socket for railctl; "agent.sock" in the first state directory, "off" for none`)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that gets Events; else the first of $KUBECONFIG, else a pod's service account, else none does")
	flags.StringVar(&o.NodeName, "node", "", "the node's name in the cluster and in metrics; else $NODE_NAME, else the host's")
	flags.StringVar(&f.nodeIP, "node-ip", "", "the node's InternalIP, else $NODE_IP; host-device lends the NIC that has it only with \"allow\": [\"uplink\"]")
	flags.StringArrayVar(&o.BinDirs, "cni-bin", nil, "CNI directory whose plugins are watched; may be given several times")
	flags.StringVar(&o.Own, "own", "", "directory with the plugins as they should be; that of the agent's program when missing")
	flags.BoolVar(&o.Restore, "restore-binaries", false, "put the plugins of --own into each --cni-bin, whenever they are not there")
	flags.BoolVar(&f.container, "container", false, "in a container with capabilities that is not privileged: make its /proc/sys and /sys writable")
	f.install.add(flags)
	f.metrics.add(flags)
	f.devices.add(flags)
	f.nri.add(flags)
	f.doctor.add(flags)
	flags.BoolVar(&f.reconcile, "reconcile", false, "free the addresses of pods that are gone, in the whole cluster; one agent of all does it")
	f.reconciler.add(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.keep(cmd.Context(), o, &f) }
	return cmd
}

// runFlags are the flags of "run", without the keeper's own.
type runFlags struct {
	kubeconfig string
	nodeIP     string
	container  bool
	install    installFlags
	metrics    metricsFlags
	devices    deviceFlags
	nri        nriFlags
	doctor     doctorFlags
	reconcile  bool
	reconciler reconcilerFlags
}

// keep runs the keeper, and the work beside it, until ctx ends.
func (a *agentFlags) keep(ctx context.Context, o agent.Options, f *runFlags) error {
	if os.Geteuid() != 0 {
		return errors.New("the ledger and the network namespaces are root's; run it as root")
	}
	if f.container {
		if err := agent.MakeWritable(); err != nil {
			return fmt.Errorf("--container: %w", err)
		}
	}
	debug.SetMemoryLimit(memoryLimit)
	if err := a.complete(&o); err != nil {
		return err
	}
	if ip := cmp.Or(f.nodeIP, os.Getenv("NODE_IP")); ip != "" {
		var err error
		if o.NodeIP, err = netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("--node-ip: %w", err)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	client, err := f.open("", a.log)
	if err != nil {
		return err
	}
	if client != nil {
		recorder := events.New(client, o.NodeName, a.log)
		beside.Go(func() { recorder.Run(ctx) })
		o.Teller = recorder
	}
	if f.reconcile {
		if client == nil {
			return errors.New("--reconcile needs a cluster: name it by --kubeconfig")
		}
		if err := f.beginReconciler(ctx, &beside, &o); err != nil {
			return err
		}
	}
	blocks := block.Keeper{StateDirs: o.StateDirs, Log: a.log, Open: func(kubeconfig, flatFile string) (*kube.Client, error) {
		return replay.Open(kubeconfig, flatFile, userAgent())
	}}
	beside.Go(func() { blocks.Run(ctx) })
	if err := f.metrics.begin(&o, client); err != nil {
		return err
	}
	if err := f.install.begin(ctx, &beside, &o, client); err != nil {
		return err
	}
	if err := f.devices.begin(ctx, &beside, &o); err != nil {
		return err
	}
	keeper := beginPublisher(ctx, &beside, &o, client)
	if err := f.nri.begin(ctx, &beside, &o, keeper); err != nil {
		return err
	}
	beginPrefixes(ctx, &beside, &o, client)
	if err := f.doctor.begin(ctx, &beside, &o, client, f.install.credential.confDir, f.install.record); err != nil {
		return err
	}
	return agent.Run(ctx, o)
}

// complete sets the options that the flags do not name.
func (a *agentFlags) complete(o *agent.Options) error {
	o.Version, o.Log = version, a.log
	o.List, o.StateDirs = agent.KeptStateDirs(a.stateDirs, a.log)
	o.Journal = replay.Journals{StateDirs: o.StateDirs, UserAgent: userAgent(), Log: a.log}
	o.Socket = cmp.Or(o.Socket, agent.SocketIn(o.StateDirs[0]))
	for _, address := range []*string{&o.Socket, &o.Metrics} {
		if *address == off {
			*address = ""
		}
	}
	if o.Own == "" {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		o.Own = filepath.Dir(program)
	}
	o.NodeName = cmp.Or(o.NodeName, os.Getenv("NODE_NAME"))
	if o.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		o.NodeName = name
	}
	return nil
}

// beginReconciler starts a reconciler of the cluster's addresses in beside, and sets the
// function in o that returns the metrics of pools. The reconciler does not replay the journal,
// because the keeper does.
func (f *runFlags) beginReconciler(ctx context.Context, beside *sync.WaitGroup, o *agent.Options) error {
	client, err := f.open(f.install.credential.namespace, o.Log)
	if err != nil {
		return err
	}
	pools := new(poolUse)
	o.Pools = pools.metrics
	r := reconcile.New(reconcile.Options{
		Client: client, Grace: f.reconciler.grace, NodeGrace: f.reconciler.nodeGrace, Interval: f.reconciler.interval, Surveyed: pools.surveyed, Log: o.Log,
	})
	beside.Go(func() {
		if err := r.Run(ctx); err != nil && ctx.Err() == nil {
			o.Log.Error("reconciler stopped", "err", err)
		}
	})
	return nil
}

// open opens the cluster, with a namespace for objects without another one. It
// returns nil if there is no cluster.
func (f *runFlags) open(namespace string, log *slog.Logger) (*kube.Client, error) {
	kubeconfig := cluster.Kubeconfig(f.kubeconfig)
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, Namespace: namespace, UserAgent: userAgent()})
	if err != nil && kubeconfig == "" {
		log.Info("no cluster, Events are off")
		return nil, nil //nolint:nilnil // no cluster is no error
	}
	return client, err
}
