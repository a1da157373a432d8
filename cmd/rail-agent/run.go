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

// These are the values of flags that turn something on or off.
const (
	on  = "on"
	off = "off"
)

// memoryLimit is the memory limit for Go's garbage collector. With this limit the process stays
// below 40 MiB, a part of which is not heap.
const memoryLimit = 24 << 20

// runHelp is the help text of "run".
const runHelp = `Run the agent of this node until SIGTERM. Run it as root in the host's network
namespace. One agent on each node is enough. (Several agents on a node do no harm.)

If the network namespace of a pod is gone, the agent ends the pod's attachments as
soon as the kernel has returned their NICs: it restores the NICs and frees the
addresses. If a state directory is on a disk, the agent also ends the attachments
that were left there by a reboot. If the agent cannot end an attachment, it tries
again after 1 s, 2 s, … 5 min. It reports such an attachment once: in the log, in
the metric rail_cni_nics_not_returned and, if there is a cluster, as an Event of
the node. If a DEL could not free addresses and left them in the journal, the agent
frees them when the API server is back.

If an interface of a pod gets its carrier only after the end of the ADD, the agent
announces the interface's addresses to the neighbors. If a driver re-creates an
RDMA device of a pod, the agent moves the device into the pod again.

For networks with block_size, the agent publishes which pods have the addresses of
this node's blocks. It returns a block that has been empty for an hour. Every five
minutes it asks the API server whether the blocks still belong to the node.

With --cni-bin, the agent compares the plugins in that directory with the plugins
in --own, and reports plugins that were replaced or removed. With
--restore-binaries, it restores such plugins. With --install, the agent installs
the plugins when it starts, and backs up the files that they replace. It also
writes files below --cni-conf: the kubeconfig of the plugin whereabouts, whose
token the agent renews, and the flat file that names the kubeconfig. --uninstall
undoes all this as soon as no pod of the node needs the plugins. Until then the
agent does its other work.

If the key "resources" of the node file has a pool, the agent is also a device
plugin: it offers the NICs of the pools to the kubelet at --kubelet-dir.

For each pod with rails, the agent writes what NCCL and other programs need to
know. It writes files to the directory "pods" below the first state directory. With
"publish: {annotation: true}" in the node file, it also writes the annotation
rail-cni.io/rails. "railctl pod" prints the same information.

If the container runtime has NRI (--nri-socket), the containers of a pod with rails
get environment variables, these files, unlimited locked memory and the char
devices of the pod's RDMA devices. Other containers are not changed.

The agent checks the node by the rules of "railctl doctor" (--doctor). It sets the
metric rail_doctor_rule, and sends Events when a problem begins or ends. With
--node-condition, it also keeps the condition RailNetworkReady of the Node.

With --reconcile, the agent also does the work of "rail-agent ipam".

At the address --metrics, the agent serves /metrics for Prometheus, /healthz and
/readyz. The metrics include the RDMA counters of each port, with the pod that has
the port. With --metrics-secure, the agent uses HTTPS, and serves /metrics only to
accounts that the cluster allows. At --socket, it serves the same paths and also
/status and /facts, but only to root. The agent is ready when it has checked every
record and has completed --install, --cni-conf or --uninstall.`

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
		"kubeconfig of the cluster that gets Events (default: the first of $KUBECONFIG, or a pod's service account; if there is neither, no Events are sent)")
	flags.StringVar(&f.agent.NodeName, "node", "", "name of the node in the cluster and in metrics (default: $NODE_NAME, or the host's name)")
	flags.StringVar(&f.nodeIP, "node-ip", "",
		"InternalIP of the node (default: $NODE_IP); host-device lends the NIC with this address only if the network has \"allow\": [\"uplink\"]")
	flags.StringArrayVar(&f.binDirs, "cni-bin", nil, "CNI directory whose plugins the agent watches; may be given several times")
	flags.StringVar(&f.pluginDir, "own", "", "directory with the plugins to install, or to compare with the installed plugins (default: the directory of the agent's program)")
	flags.BoolVar(&f.restore, "restore-binaries", false, "copy plugins from --own into each --cni-bin whenever they are missing or replaced there")
	flags.BoolVar(&f.container, "container", false, "make /proc/sys and /sys of the agent's container writable; for a container that has capabilities but is not privileged")
	f.install.add(flags)
	f.metrics.add(flags)
	f.devices.add(flags)
	f.nri.add(flags)
	f.doctor.add(flags)
	flags.BoolVar(&f.reconcile, "reconcile", false, "free the addresses of pods that are gone, in the whole cluster; at any time only one of all agents does this")
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
	pluginDir  string
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

// host has what the components of "run" know about their node and their cluster.
type host struct {
	name      string
	stateDirs []string
	list      nodefile.StateDirs // the state directories, as the plugins are told
	ip        netip.Addr         // zero if not known
	binDirs   []string
	pluginDir string
	socket    string                 // "" for none
	client    *kube.Client           // nil without a cluster
	nodeFile  nodefile.Reader        // the reader of the node file, which all components share
	dirs      *notify.Dirs           // the watcher of directories, which all components share
	notify    func(component.Notice) // nil without a cluster
	log       *slog.Logger
}

// keep runs the components of the agent until ctx ends.
func (a *agentFlags) keep(ctx context.Context, f *runFlags) error {
	if os.Geteuid() != 0 {
		return errors.New("rail-agent reads the ledger and the pods' network namespaces; run it as root")
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
	plugins, err := f.install.components(ctx, h, f.restore) // this also installs the plugins
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

// host returns the host, and the components that all other components need.
func (a *agentFlags) host(f *runFlags) (*host, []component.Component, error) {
	h := &host{binDirs: f.binDirs, pluginDir: f.pluginDir, log: a.log, name: cmp.Or(f.agent.NodeName, os.Getenv("NODE_NAME"))}
	h.list, h.stateDirs = keeper.KeptStateDirs(a.stateDirs, a.log)
	var err error
	if h.socket = cmp.Or(f.agent.Socket, local.SocketIn(h.stateDirs[0])); h.socket == off {
		h.socket = ""
	}
	if h.pluginDir == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, nil, err
		}
		h.pluginDir = filepath.Dir(program)
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
			err = errors.New("--reconcile needs a cluster; name a kubeconfig with --kubeconfig")
		}
		return h, nil, err
	}
	recorder := events.New(h.client, h.name, a.log)
	h.notify = recorder.Notify
	return h, []component.Component{{Name: "events", Run: recorder.Run}}, nil
}

// options returns the options of the agent itself, without its other components.
func (f *runFlags) options(h *host) (agent.Options, error) {
	o := f.agent
	o.NodeName, o.Version, o.Keeps, o.Socket, o.ReadyWithoutMetrics, o.Notify, o.Log = h.name, version, true, h.socket, f.install.uninstall, h.notify, h.log
	if o.Metrics == off {
		o.Metrics = ""
	}
	return o, f.metrics.begin(&o, h.client)
}

// addresses returns the components for addresses: the component that replays the journals, the
// component for the node's blocks and, with --reconcile, the reconciler of the cluster's pools. The
// reconciler itself does not replay the journal.
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

// open returns a client for the cluster. namespace is the namespace of objects for which no other
// namespace is given. open returns nil if there is no cluster.
func (f *runFlags) open(namespace string, log *slog.Logger) (*kube.Client, error) {
	kubeconfig := cluster.Kubeconfig(f.kubeconfig)
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, Namespace: namespace, UserAgent: userAgent()})
	if err != nil && kubeconfig == "" {
		log.Info("there is no cluster, so Events are off")
		return nil, nil //nolint:nilnil // it is not an error if there is no cluster
	}
	return client, err
}
