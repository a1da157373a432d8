package attach

import (
	"context"
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// ipamCall is one call of an IPAM plugin. Its environment is built from what
// it is given alone, because a sweep calls for attachments that the
// environment of its own process knows nothing of.
type ipamCall struct {
	plugin string
	binary string
	env    pluginEnv
	config []byte
}

func newIPAMCall(plugin string, env pluginEnv, config []byte) (*ipamCall, error) {
	binary, err := findPlugin(plugin, env.path)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.IPAM, "install it in the CNI binary directory, or correct the type", "IPAM plugin %q", plugin)
	}
	return &ipamCall{plugin: plugin, binary: binary, config: config, env: env}, nil
}

func (i *ipamCall) run(ctx context.Context) ([]byte, error) {
	stdout, err := execPlugin(ctx, i.binary, i.env, i.config)
	return stdout, i.failed(err)
}

// failed keeps the plugin's code where a runtime acts upon it.
func (i *ipamCall) failed(err error) error {
	code := cnierr.IPAM
	switch c := cnierr.Code(err); c {
	case cnierr.TryAgain, cnierr.NotAvailable, cnierr.Limited, cnierr.InvalidConfig:
		code = c
	}
	return cnierr.Wrap(err, code, "", "IPAM plugin %q, %s", i.plugin, i.env.command)
}

func (c *Call) env(verb string) pluginEnv {
	return pluginEnv{command: verb, containerID: c.ContainerID, netns: c.Netns, ifName: c.IfName, args: c.Args, path: c.Path}
}

// ipamVerb passes a verb without a result on to the configuration's IPAM
// plugin, if it has one.
func (c *Call) ipamVerb(ctx context.Context, verb string) error {
	if c.Conf.IPAM.Type == "" {
		return nil
	}
	i, err := newIPAMCall(c.Conf.IPAM.Type, c.env(verb), c.Conf.Raw)
	if err != nil {
		return err
	}
	_, err = i.run(ctx)
	return err
}

// ipamAdd asks the IPAM plugin for addresses, routes and DNS. From the moment
// it is asked, its answer has to be given back.
func (a *Adding) ipamAdd(ctx context.Context, l3 *layer3) error {
	i, err := newIPAMCall(a.Conf.IPAM.Type, a.env("ADD"), a.Conf.Raw)
	if err != nil {
		return err
	}
	// An ADD whose time is up must still give back.
	a.back.push(func() error {
		if a.answers {
			return nil // a DEL frees them
		}
		return a.Node.ipamDel(context.WithoutCancel(ctx), a.Record)
	})
	stdout, err := i.run(ctx)
	if err != nil {
		return err
	}
	answer, err := decodeResult(stdout, a.Conf.CNIVersion)
	if err != nil {
		return i.failed(err)
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return i.failed(err)
	}
	if len(result.IPs) == 0 {
		return cnierr.New(cnierr.IPAM, "give it a range, or leave the ipam section empty",
			"IPAM plugin %q returned missing IP config", i.plugin)
	}
	l3.ips, l3.routes = result.IPs, result.Routes
	if l3.dns.IsEmpty() {
		l3.dns = result.DNS
	}
	return nil
}

// ipamDel frees the addresses of the recorded attachment. It may be called
// again. The error wraps errNoPlugin when the plugin is not installed.
func (n *Node) ipamDel(ctx context.Context, r *ledger.Record) error {
	if r.IPAM == nil {
		return nil
	}
	i, err := newIPAMCall(r.IPAM.Type, pluginEnv{
		command: "DEL", containerID: r.ContainerID, netns: r.Netns.Path, ifName: r.IfName, args: r.IPAM.Args, path: r.IPAM.Path,
	}, r.IPAM.Config)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", r.Holder(), err)
	}
	_, err = i.run(ctx)
	return err
}
