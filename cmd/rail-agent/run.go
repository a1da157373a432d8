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

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/agent/events"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/inventory/counters"
	"github.com/rail-cni/rail-cni/pkg/keeper"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/replay"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/usage"
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
const runHelp = `Run the agent of this node until SIGTERM. Run it as root in the host's network
namespace, once on each node. (Several agents do no harm.)

An attachment whose pod's network namespace is gone is ended as soon as the kernel
has returned its NIC: the NIC is restored, and its addresses are freed. Attachments
that a reboot left in a state directory on a disk are ended too. If an attachment
cannot be ended, the agent tries again after 1 s, 2 s, … 5 min, and reports the
attachment once: in the log, in the metric rail_cni_nics_not_returned, and as an
Event of the node if there is a cluster. Addresses that a DEL left in the journal
are freed when the server is back.

If the carrier of a pod comes only after the end of its ADD, the agent announces the
pod's addresses to the neighbors. If a driver re-creates an RDMA device of a pod,
the agent moves the device into the pod again.

For networks with block_size it publishes which pods have the addresses of this
node's blocks, and returns a block that has been empty for an hour. Every five
minutes it asks the API server whether the blocks are still the node's.

With --cni-bin the agent compares the plugins in that directory with those in --own,
and reports plugins that were replaced or removed. With --restore-binaries it
restores them. --install installs the plugins when the agent starts, backs up the
files that they replace, and writes files below --cni-conf: the kubeconfig of the
plugin whereabouts, whose token it renews, and the flat file that names the
kubeconfig. --uninstall undoes that as soon as no pod of the node needs the plugins.
Until then the agent does its other work.

While "resources" of the node file has a pool, the agent is a device plugin: it
offers the NICs of the pools to the kubelet at --kubelet-dir.

For each pod with rails it writes what NCCL and other programs need to know: files
in "pods" below the first state directory and, with "publish: {annotation: true}"
in the node file, the annotation rail-cni.io/rails. "railctl pod" prints the same.

If the container runtime has NRI (--nri-socket), containers of such a pod get
environment variables, these files, unlimited locked memory and the char devices of
the pod's RDMA devices. Other containers are not changed.

It checks the node by the rules of "railctl doctor" (--doctor): the metric
rail_doctor_rule, Events when a problem begins or ends and, with --node-condition,
the condition RailNetworkReady of the Node.

--reconcile does the work of "rail-agent ipam".

At --metrics it serves /metrics for Prometheus (with the RDMA counters of each port,
and the pod that has the port), /healthz and /readyz. With --metrics-secure it
serves them by HTTPS, and /metrics only to accounts that the cluster allows. At
--socket it serves the same, /status and /facts, for root only. The agent is ready
when it has checked everything, and has completed --install, --cni-conf or
--uninstall.`

func newRun(a *agentFlags) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent: return NICs of dead pods at once, watch the plugins, report problems",
		Long:  runHelp,
		Example: `  rail-agent run
  rail-agent run --cni-bin /opt/cni/bin --own /usr/local/lib/rail-cni --restore-binaries
  rail-agent run --cni-bin /opt/cni/bin --own /usr/local/lib/rail-cni --install --prefix rail-
  curl --unix-socket /run/rail-cni/agent.sock http://agent/status`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.agent.Metrics, "metrics", "127.0.0.1:9400", `address of /metrics, /healthz and /readyz; "off" for none`)
	flags.StringVar(&f.agent.Socket, "socket", "", `path of the socket for railctl; "agent.sock" in the first state directory, "off" for none`)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster that gets Events (default: the first of $KUBECONFIG, or a pod's service account; without either, there are no Events)")
	flags.StringVar(&f.agent.NodeName, "node", "", "the node's name in the cluster and in metrics (default: $NODE_NAME, or the host's name)")
	flags.StringVar(&f.nodeIP, "node-ip", "",
		"the node's InternalIP (default: $NODE_IP); host-device lends the NIC with this address only with \"allow\": [\"uplink\"]")
	flags.StringArrayVar(&f.binDirs, "cni-bin", nil, "CNI directory whose plugins are watched; may be given several times")
	flags.StringVar(&f.own, "own", "", "directory with the plugins to install and to compare with (default: the directory of the agent's program)")
	flags.BoolVar(&f.restore, "restore-binaries", false, "copy the plugins of --own into each --cni-bin whenever they are missing or replaced there")
	flags.BoolVar(&f.container, "container", false, "in a container with capabilities that is not privileged: make its /proc/sys and /sys writable")
	f.install.add(flags)
	f.metrics.add(flags)
	f.devices.add(flags)
	f.nri.add(flags)
	f.doctor.add(flags)
	flags.BoolVar(&f.reconcile, "reconcile", false, "free the addresses of pods that are gone, in the whole cluster; only one of all agents does it at a time")
	f.reconciler.add(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.keep(cmd.Context(), &f) }
	return cmd
}

// runFlags are the flags of "run".
type runFlags struct {
	agent      agent.Options
	kubeconfig string
	nodeIP     string
	binDirs    []string
	own        string
	restore    bool
	container  bool
	install    installFlags
	metrics    metricsFlags
	devices    deviceFlags
	nri        nriFlags
	doctor     doctorFlags
	reconcile  bool
	reconciler reconcilerFlags
}

// host is what the components of "run" know of their node and their cluster.
type host struct {
	name      string
	stateDirs []string
	list      nodefile.StateDirs // what the plugins are told of them
	ip        netip.Addr         // zero if not known
	binDirs   []string
	own       string
	socket    string                 // "" for none
	client    *kube.Client           // nil without a cluster
	nodeFile  nodefile.Reader        // the one reader of the node file
	dirs      *notify.Dirs           // the one watcher of directories
	notify    func(component.Notice) // nil without a cluster
	log       *slog.Logger
}

// keep runs the components of the agent until ctx ends.
func (a *agentFlags) keep(ctx context.Context, f *runFlags) error {
	if os.Geteuid() != 0 {
		return errors.New("it must run as root: it reads the ledger and the pods' network namespaces")
	}
	if f.container {
		if err := makeWritable(); err != nil {
			return fmt.Errorf("--container: %w", err)
		}
	}
	debug.SetMemoryLimit(memoryLimit)
	h, events, err := a.host(f)
	if err != nil {
		return err
	}
	h.dirs = notify.NewDirs(a.log)
	defer h.dirs.Close()
	o, err := f.options(h)
	if err != nil {
		return err
	}
	run := agent.New(o)
	run.Add(events...)
	plugins, err := f.install.components(ctx, h, f.restore) // installs them, too
	if err != nil {
		return err
	}
	nics, err := keeper.New(keeper.Options{
		StateDirs: h.stateDirs, List: h.list, NodeIP: h.ip, Dirs: h.dirs, Notify: h.notify, Log: h.log,
		Uninstalling: f.install.uninstall, Leaving: f.install.uninstall && f.install.force,
	})
	if err != nil {
		return err
	}
	defer nics.Close()
	devices, err := f.devices.components(h)
	if err != nil {
		return err
	}
	publisher := publish.NewKeeper(publish.Options{
		StateDirs: h.stateDirs, Node: h.name, Client: h.client, NodeFile: &h.nodeFile, Dirs: h.dirs, Log: h.log, Notify: h.notify,
	})
	containers, err := f.nri.components(h, publisher)
	if err != nil {
		return err
	}
	rules, err := f.doctor.components(h, &f.install, run.Status)
	if err != nil {
		return err
	}
	addresses, err := f.addresses(h)
	if err != nil {
		return err
	}
	ports := counters.Collector{NodeName: h.name, StateDirs: h.stateDirs, Log: h.log}
	run.Add(nics.Component(), ports.Component(), publisher.Component())
	for _, list := range [][]component.Component{plugins, devices, containers, rules, addresses} {
		run.Add(list...)
	}
	return run.Run(ctx)
}

// host returns the node and its cluster, and the components that serve all others.
func (a *agentFlags) host(f *runFlags) (*host, []component.Component, error) {
	h := &host{binDirs: f.binDirs, own: f.own, log: a.log, name: cmp.Or(f.agent.NodeName, os.Getenv("NODE_NAME"))}
	h.list, h.stateDirs = keeper.KeptStateDirs(a.stateDirs, a.log)
	var err error
	if h.socket = cmp.Or(f.agent.Socket, local.SocketIn(h.stateDirs[0])); h.socket == off {
		h.socket = ""
	}
	if h.own == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, nil, err
		}
		h.own = filepath.Dir(program)
	}
	if h.name == "" {
		if h.name, err = os.Hostname(); err != nil {
			return nil, nil, err
		}
	}
	if ip := cmp.Or(f.nodeIP, os.Getenv("NODE_IP")); ip != "" {
		if h.ip, err = netip.ParseAddr(ip); err != nil {
			return nil, nil, fmt.Errorf("--node-ip: %w", err)
		}
	}
	if h.client, err = f.open("", a.log); err != nil {
		return nil, nil, err
	}
	if h.client == nil {
		if f.reconcile {
			err = errors.New("--reconcile needs a cluster: name it with --kubeconfig")
		}
		return h, nil, err
	}
	recorder := events.New(h.client, h.name, a.log)
	h.notify = recorder.Notify
	return h, []component.Component{{Name: "events", Run: recorder.Run}}, nil
}

// options returns the options of the agent itself.
func (f *runFlags) options(h *host) (agent.Options, error) {
	o := f.agent
	o.NodeName, o.Version, o.Keeps, o.Socket, o.ReadyWithoutMetrics, o.Notify, o.Log = h.name, version, true, h.socket, f.install.uninstall, h.notify, h.log
	if o.Metrics == off {
		o.Metrics = ""
	}
	return o, f.metrics.begin(&o, h.client)
}

// addresses returns the components for addresses: the replay of the journals, the node's blocks
// and, with --reconcile, the reconciler of the cluster's pools. The reconciler does not replay the
// journal.
func (f *runFlags) addresses(h *host) ([]component.Component, error) {
	journals := replay.Journals{StateDirs: h.stateDirs, UserAgent: userAgent(), NodeFile: &h.nodeFile, Log: h.log}
	blocks := block.Keeper{StateDirs: h.stateDirs, Log: h.log, Open: journals.Open}
	components := []component.Component{journals.Component(h.notify), {Name: "blocks", Run: blocks.Run}}
	if !f.reconcile {
		return components, nil
	}
	client, err := f.open(f.install.credential.namespace, h.log)
	if err != nil {
		return nil, err
	}
	pools := new(usage.Metrics)
	r := reconcile.New(reconcile.Options{
		Client: client, Grace: f.reconciler.grace, NodeGrace: f.reconciler.nodeGrace, Interval: f.reconciler.interval, Surveyed: pools.Surveyed, Log: h.log,
	})
	return append(components, pools.Component(), component.Component{Name: "reconciler", Run: func(ctx context.Context) {
		if err := r.Run(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("reconciler has stopped", "err", err)
		}
	}}), nil
}

// open opens the cluster, with a namespace for objects without another one. It
// returns nil if there is no cluster.
func (f *runFlags) open(namespace string, log *slog.Logger) (*kube.Client, error) {
	kubeconfig := cluster.Kubeconfig(f.kubeconfig)
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, Namespace: namespace, UserAgent: userAgent()})
	if err != nil && kubeconfig == "" {
		log.Info("there is no cluster, so Events are off")
		return nil, nil //nolint:nilnil // no cluster is no error
	}
	return client, err
}
