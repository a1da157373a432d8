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

// onceTime bounds one pass beyond its grace period: the API client retries
// until a context ends.
const onceTime = 10 * time.Minute

// reconcilerFlags are the flags of every command that reconciles.
type reconcilerFlags struct{ grace, nodeGrace, interval time.Duration }

func (f *reconcilerFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&f.grace, "grace", reconcile.DefaultGrace, "how long a pod must be gone before its addresses are freed")
	flags.DurationVar(&f.nodeGrace, "node-grace", reconcile.DefaultNodeGrace, "like --grace, but while a node is not ready, "+
		"and after a node was removed or reconciling started, because such a pod may still run; "+
		"also how long a Node must be gone before its blocks are revoked; a value below --grace counts as --grace")
	flags.DurationVar(&f.interval, "interval", reconcile.DefaultInterval, "time between two checks of all addresses")
}

func newIPAM(a *agentFlags) *cobra.Command {
	var once, journal bool
	var of reconcilerFlags
	var flags cluster.Flags
	var address, health string
	var metrics metricsFlags
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Free the addresses of pods that are gone, from whereabouts' pools in the cluster",
		Long: `Free addresses in the IPPools of the cluster whose pods are gone, each together with
its reservation, and repair pairs of entry and reservation if one of the two is
missing. Also free addresses that DELs of this node could not free while the API
server was unreachable.

An address is freed if its pod was missing in two checks, the grace period apart,
and is still missing in a third check right before the deletion. A pod that exists
keeps its addresses until its DEL, unless it has ended (Succeeded, Failed) for
longer than the grace period. While a node of the cluster is not ready, and after a
node was removed or this command started to reconcile, the grace period is
--node-grace: a node that lost its connection continues to run pods that the cluster
has deleted. With --once the grace period is always --grace. Except with --once, the
command also frees the blocks (block_size) of nodes that are gone. The command may
run on every node: the Lease rail-cni-reconciler lets only one of them reconcile.
"railctl ipam gc" reconciles once, and prints what it did.

At --metrics it serves /metrics for Prometheus. While it holds the Lease, the
metrics show how full the pools were at its last scan. At --health it serves
/healthz and /readyz. It is ready when it could read the Lease and, if it holds the
Lease, the pools and pods.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&once, "once", false, "reconcile once, without the Lease, and end; the exit code is 1 if something is left undone")
	cmd.Flags().BoolVar(&journal, "journal", true, "also free addresses that DELs of this node left in the journal; "+
		"set false in a pod that does not serve its node")
	cmd.Flags().StringVar(&address, "metrics", off, `address of /metrics; "off" for none`)
	cmd.Flags().StringVar(&health, "health", off, `address of /healthz and /readyz, without encryption, for the kubelet's probes; "off" for none`)
	metrics.add(cmd.Flags())
	of.add(cmd.Flags())
	flags.Add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := flags.Open(userAgent())
		if err != nil {
			return err
		}
		o := reconcile.Options{Client: client, Grace: of.grace, NodeGrace: of.nodeGrace, Interval: of.interval, Log: a.log}
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
		ctx, cancel := context.WithTimeout(cmd.Context(), of.grace+onceTime)
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

// reconcile reconciles until ctx ends, and serves the metrics of pools and the probes at the
// addresses.
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
	serve := agent.Options{NodeName: name, Version: version, Log: a.log} // the name is that of a certificate that the process signs itself
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
