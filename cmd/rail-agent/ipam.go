package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/usage"
)

// onceTime is the time limit of one pass, in addition to the grace period. It is needed because the
// API client retries until its context ends.
const onceTime = 10 * time.Minute

// reconcilerFlags are the flags that all commands have that reconcile.
type reconcilerFlags struct{ grace, nodeGrace, interval time.Duration }

func (f *reconcilerFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&f.grace, "grace", reconcile.DefaultGrace, "how long a pod must be gone before its addresses are freed")
	flags.DurationVar(&f.nodeGrace, "node-grace", reconcile.DefaultNodeGrace, "used instead of --grace while a node is not ready, "+
		"and after a node was removed or reconciling started, because a pod that seems to be gone may then still run; "+
		"also how long a Node must be gone before its blocks are revoked; if it is smaller than --grace, --grace is used")
	flags.DurationVar(&f.interval, "interval", reconcile.DefaultInterval, "time between two checks of all addresses")
}

func newIPAM(a *agentFlags) *cobra.Command {
	var once, journal bool
	var reconciler reconcilerFlags
	var flags cluster.Flags
	var address, health string
	var metrics metricsFlags
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Free the addresses of pods that are gone, in whereabouts' pools of the cluster",
		Long: `Free the addresses of pods that are gone, in the IPPools of the cluster. This also
removes the reservation of each address. If an entry lacks its reservation, or a
reservation lacks its entry, repair the pair. Also free addresses that DELs on this
node could not free while the API server was unreachable.

An address is freed if its pod was missing in two checks with the grace period
between them, and is still missing in a third check directly before the deletion. A
pod that exists keeps its addresses until its DEL, except if the pod has ended
(Succeeded, Failed) for longer than the grace period. The grace period is --grace.
While a node of the cluster is not ready, and after a node was removed or this
command started to reconcile, the grace period is --node-grace, because a node that
has lost its connection still runs pods that the cluster has deleted. With --once,
the grace period is always --grace. Without --once, the command also frees the
blocks (block_size) of nodes that are gone. The command may run on every node,
because the Lease rail-cni-reconciler allows only one of them to reconcile.
"railctl ipam gc" reconciles once, and prints what it did.

At the address --metrics, the command serves /metrics for Prometheus. While it
holds the Lease, the metrics show how full the pools were at its last scan. At the
address --health, it serves /healthz and /readyz. It is ready when it could read
the Lease. If it holds the Lease, it must also have read the pools and the pods.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&once, "once", false, "reconcile once, without the Lease, and end; the exit code is 1 if something could not be done")
	cmd.Flags().BoolVar(&journal, "journal", true, "also free addresses that DELs of this node left in the journal; "+
		"set it to false in a pod that does not work for its node")
	cmd.Flags().StringVar(&address, "metrics", off, `address of /metrics; "off" for none`)
	cmd.Flags().StringVar(&health, "health", off, `address of /healthz and /readyz, without encryption, for probes of the kubelet; "off" for none`)
	metrics.add(cmd.Flags())
	reconciler.add(cmd.Flags())
	flags.Add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := flags.Open(userAgent())
		if err != nil {
			return err
		}
		o := reconcile.Options{Client: client, Grace: reconciler.grace, NodeGrace: reconciler.nodeGrace, Interval: reconciler.interval, Log: a.log}
		if journal {
			s, err := flags.Store(userAgent(), a.stateDirs[0])
			if err != nil {
				return err
			}
			defer s.Close()
			o.Journal = s
		}
		if !once {
			return a.reconcile(cmd.Context(), o, address, health, &metrics)
		}
		r := reconcile.New(o)
		ctx, cancel := context.WithTimeout(cmd.Context(), reconciler.grace+onceTime)
		defer cancel()
		found, err := r.Once(ctx)
		r.Report(found)
		if failed := reconcile.Count(found, reconcile.Failed); failed > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d could not be freed or repaired", failed, len(found)))
		}
		return err
	}
	return cmd
}

// reconcile reconciles until ctx ends. It serves the metrics of the pools at address, and the
// probes at health.
func (a *agentFlags) reconcile(ctx context.Context, o reconcile.Options, address, health string, f *metricsFlags) error {
	if address == off && health == off {
		return reconcile.New(o).Run(ctx)
	}
	pools := new(usage.Metrics)
	o.Surveyed = pools.Surveyed
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	serve := agent.Options{NodeName: name, Version: version, Log: a.log} // the name stands in a certificate that the process signs itself
	if address != off {
		serve.Metrics = address
	}
	if health != off {
		serve.Health = health
	}
	if err := f.begin(&serve, o.Client); err != nil {
		return err
	}
	run := agent.New(serve)
	r := reconcile.New(o)
	var failed error
	run.Add(pools.Component(), component.Component{Name: "reconciler", Ready: r.Ready, Run: func(ctx context.Context) { failed = r.Run(ctx) }})
	err = run.Run(ctx)
	return errors.Join(err, failed)
}
