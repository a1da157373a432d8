package diagnose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/verify"
	"github.com/rail-cni/rail-cni/pkg/verify/pods"
)

// verifyCluster has the flags of "railctl verify" for a cluster.
type verifyCluster struct {
	cluster.Flags
	agents   string // their namespace
	networks []string
	nodes    []string
	selector string
	image    string
	rdma     string // the image with perftest
	within   time.Duration
	timeout  time.Duration
}

func (c *verifyCluster) add(cmd *cobra.Command) {
	c.WithoutPlugins = true
	cli.AddClusterFlags(cmd, &c.Flags)
	flags := cmd.Flags()
	flags.StringVarP(&c.Namespace, "namespace", "n", "default", "namespace of the pods, and of networks whose names have no namespace")
	flags.StringVar(&c.agents, "agent-namespace", cli.DefaultAgentNamespace, "namespace of rail-agent's pods")
	flags.StringSliceVar(&c.networks, "network", nil, "the rails' networks, as NAME or NAMESPACE/NAME, rail 0 first "+
		"(default: all networks of the namespace whose plugin is host-device, or macvlan if there are none, ordered by the numbers in their names)")
	flags.StringSliceVar(&c.nodes, "nodes", nil, "nodes to measure (default: all nodes with a rail-agent)")
	flags.StringVar(&c.selector, "selector", "", "labels of the nodes to measure")
	flags.StringVar(&c.image, "image", "", "image with /railctl for the pods (default: the image of the node's rail-agent)")
	flags.StringVar(&c.rdma, "rdma-image", "", "image with the programs of perftest, for --level 2 and 3")
	flags.DurationVar(&c.within, "start-timeout", time.Minute, "how long to wait until the pods run; a node whose pod does not run after this time is not measured")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Minute, "time limit of the whole run; Kubernetes ends the pods after this time, even if railctl was killed")
}

func (c *verifyCluster) check(level int) error {
	switch {
	case level >= 2 && c.rdma == "":
		return fmt.Errorf("--level %d needs ib_send_lat, ib_write_lat and ib_write_bw; name an image that has them with --rdma-image", level)
	case level < 2 && c.rdma != "":
		return errors.New("--rdma-image applies only to --level 2 and 3")
	case len(c.nodes) > 0 && c.selector != "":
		return errors.New("--nodes and --selector exclude each other")
	case len(c.nodes) == 1:
		return errors.New("a rail has two ends; name at least two nodes with --nodes")
	case c.within < time.Second || c.timeout < c.within:
		return errors.New("--start-timeout must be at least 1s, and not more than --timeout")
	}
	for i, n := range c.nodes {
		if slices.Contains(c.nodes[:i], n) {
			return fmt.Errorf("--nodes has %s twice", cell.Printable(n))
		}
	}
	return nil
}

// fabricAgain is the time limit of the second request for the fabric.
const fabricAgain = 30 * time.Second

// inCluster measures between nodes of a cluster.
func (v *verifyFlags) inCluster(ctx context.Context, cmd *cobra.Command) (*verify.Result, error) {
	c := &v.cluster
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the run did not end within --timeout, %s", c.timeout))
	defer cancel()
	client, err := c.Open(cli.UserAgent())
	if err != nil {
		return nil, err
	}
	o, err := c.options(ctx, client)
	if err != nil {
		return nil, err
	}
	type answer struct {
		fabric string
		err    error
	}
	asked := make(chan answer, 1)
	go func() { // this runs while the pods start
		fabric, err := v.findFabric(ctx, o.Agents)
		asked <- answer{fabric, err}
	}()
	bar := cli.NewProgress(cmd.ErrOrStderr())
	o.Done = bar.Show("pods: %d of %d run")
	defer bar.Clear()
	fleet, err := pods.Start(ctx, *o)
	if fleet != nil {
		defer func() {
			if err := fleet.Close(); err != nil {
				cli.Note(cmd.ErrOrStderr(), "%s", cell.Printable(err.Error()))
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	found := <-asked
	if found.err != nil && o.Agents != nil && !kube.IsForbidden(found.err) {
		// The first request may have failed because the nodes were busy starting the pods.
		again, cancel := context.WithTimeout(ctx, fabricAgain)
		defer cancel()
		found.fabric, found.err = v.findFabric(again, o.Agents)
	}
	if v.Fabric = found.fabric; found.err != nil {
		cli.Note(cmd.ErrOrStderr(), "the fabric of the nodes is unknown, so paths between different rails are not tested; "+
			"name the fabric with --fabric: %s", cell.Printable(found.err.Error()))
	}
	v.Interfaces = fleet.Interfaces()
	result, err := v.measure(ctx, cmd, fleet.Nodes())
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, err
}

// options returns the options for making the pods.
func (c *verifyCluster) options(ctx context.Context, client *kube.Client) (*pods.Options, error) {
	o := &pods.Options{Client: client, Namespace: c.Namespace, Nodes: c.nodes, Image: c.image, RDMAImage: c.rdma, Within: c.within, Deadline: c.timeout}
	var err error
	if o.Networks, err = pods.Networks(ctx, client, c.Namespace, c.networks); err != nil {
		return nil, err
	}
	if c.selector != "" {
		if o.Nodes, err = pods.Select(ctx, client, c.selector); err != nil {
			return nil, err
		}
	}
	if o.Image == "" || len(o.Nodes) == 0 {
		if o.Agents, err = pods.FindAgents(ctx, client, c.agents); err != nil {
			return nil, err
		}
	}
	if len(o.Nodes) == 0 {
		o.Nodes = o.Agents.Nodes()
	}
	if len(o.Nodes) < 2 {
		return nil, fmt.Errorf("a rail has two ends, but %s is the only node; name at least two nodes with --nodes", cell.Printable(o.Nodes[0]))
	}
	return o, nil
}

// findFabric returns the fabric that --fabric names. Without --fabric it returns the fabric in the
// node file of one of the agents.
func (v *verifyFlags) findFabric(ctx context.Context, agents *pods.Agents) (string, error) {
	switch {
	case v.fabric != "":
		return v.fabric, nil
	case agents == nil:
		return "", errors.New("no rail-agent was asked")
	}
	return agents.Fabric(ctx)
}
