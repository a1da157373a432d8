package address

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// Ask is the part that requests addresses, routes and DNS from the configuration's IPAM plugin, and
// frees the addresses. Apply does not wait for the answer, so that the link can be made meanwhile.
// [Await] waits for the answer.
type Ask struct {
	attachment.Base
	await *Await
	call  *call // set by Claim
}

// Await is the part that waits for the answer of the IPAM plugin. If the plugin works on the
// interface, Await also starts the plugin.
type Await struct {
	attachment.Base
	ask    *Ask
	answer chan answer
}

// linkless lists the IPAM plugins that are known to work without the interface. whereabouts does
// too, but it is not in the list, because an installation may add a prefix to its name.
var linkless = []string{"host-local", "static", "nv-ipam"}

// ByInterface implements [attachment.Addresses]. It reports true for a plugin that is not known.
// Upstream's plugins treat every IPAM plugin as one that works on the interface.
func (*Ask) ByInterface(plugin string) bool {
	return plugin != "" && !strings.HasSuffix(plugin, "whereabouts") && !slices.Contains(linkless, plugin)
}

type answer struct {
	result *current.Result
	err    error
}

// IPAM returns the two parts of an attachment that get addresses from an IPAM plugin.
func IPAM() (*Ask, *Await) {
	await := &Await{answer: make(chan answer, 1)}
	await.ask = &Ask{await: await}
	return await.ask, await
}

// Name implements [attachment.Part].
func (*Ask) Name() string { return "ipam" }

// Name implements [attachment.Part].
func (*Await) Name() string { return "addresses" }

// Claim finds the plugin, and records how to free the addresses.
func (p *Ask) Claim(_ context.Context, tx *attachment.Tx) error {
	tx.Layer3.DNS = tx.Conf.DNS
	if tx.Conf.IPAM.Type == "" {
		return nil
	}
	// The configuration is expanded before it is recorded: the IPAM plugin does not know rails, and
	// the NIC may have another rail by the time of the DEL.
	raw, err := expanded(tx.Node, tx.Conf, tx.Rail, tx.Rails)
	if err != nil {
		return err
	}
	conf := netconf.Common{Raw: raw}
	config, err := conf.Kept()
	if err != nil {
		return err
	}
	if p.call, err = newCall(tx.Conf.IPAM.Type, environment(tx.Call, "ADD"), conf.Raw); err != nil {
		return err
	}
	tx.Record.IPAM = &ledger.IPAM{Type: tx.Conf.IPAM.Type, Path: tx.Path, Args: tx.Args, Config: config}
	return nil
}

// Recorded implements [attachment.Part].
func (*Ask) Recorded(r *ledger.Record) bool { return r.IPAM != nil }

// Apply starts the IPAM plugin, unless the plugin works on the interface. Once the plugin is
// started, a failed ADD must free its addresses.
func (p *Ask) Apply(ctx context.Context, tx *attachment.Tx) error {
	if p.call == nil || p.ByInterface(tx.Record.IPAM.Type) {
		return nil
	}
	p.start(ctx, tx)
	return nil
}

func (p *Ask) start(ctx context.Context, tx *attachment.Tx) {
	tx.Go(func() {
		result, err := p.call.add(ctx, tx.Conf.CNIVersion)
		p.await.answer <- answer{result, err}
	})
}

// Apply waits for the answer of the IPAM plugin. If the plugin works on the interface, Apply first
// sets the interface up and starts the plugin: the plugin finds the interface up, as with
// upstream's host-device.
func (p *Await) Apply(ctx context.Context, tx *attachment.Tx) error {
	if tx.Record.IPAM == nil {
		return nil
	}
	if p.ask.ByInterface(tx.Record.IPAM.Type) {
		if tx.Link != nil {
			if err := setUp(ctx, tx, tx.Link.Index); err != nil {
				return err
			}
			var err error
			if tx.Link, err = link.ByIndex(tx.Pod, tx.Link.Index); err != nil {
				return err
			}
		}
		p.ask.start(ctx, tx)
	}
	a := <-p.answer
	if a.err != nil {
		return a.err
	}
	if len(a.result.IPs) == 0 && len(tx.Layer3.CarriedIPs) == 0 {
		return failure.New(failure.IPAM, "IPAM plugin %q returned missing IP config", tx.Record.IPAM.Type).
			Cure("give the plugin a range, or leave the ipam section empty")
	}
	for _, ip := range a.result.IPs {
		if ip.Gateway.IsUnspecified() { // this means no gateway, as in a route: see routeOf
			ip.Gateway = nil
		}
	}
	tx.Layer3.IPs, tx.Layer3.Routes = a.result.IPs, a.result.Routes
	if tx.Layer3.DNS.IsEmpty() {
		tx.Layer3.DNS = a.result.DNS
	}
	return nil
}

// Release frees the addresses of the recorded attachment. It looks for the IPAM plugin in the
// recorded CNI_PATH and then in the CNI_PATH of this call, because the directory may have moved
// since ADD. The error wraps [attachment.ErrNotInstalled] if the plugin is in neither.
func (p *Ask) Release(ctx context.Context, releasing *attachment.Releasing) error {
	r := releasing.Record
	env := pluginEnv{
		command: "DEL", containerID: r.ContainerID, netns: r.Netns.Path, ifName: r.IfName, args: r.IPAM.Args, path: r.IPAM.Path,
	}
	i, err := newCall(r.IPAM.Type, env, r.IPAM.Config)
	if now := releasing.Node.CNIPath; now != "" && errors.Is(err, attachment.ErrNotInstalled) {
		env.path = now
		i, err = newCall(r.IPAM.Type, env, r.IPAM.Config)
	}
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", r.Holder(), err)
	}
	_, err = i.run(ctx)
	return err
}

// Pass implements [attachment.Addresses].
func (*Ask) Pass(ctx context.Context, n *attachment.Node, c *attachment.Call, verb string) error {
	if c.Conf.IPAM.Type == "" {
		return nil
	}
	configs, err := configurations(n, c, verb)
	errs := []error{err}
	for _, config := range configs {
		i, err := newCall(c.Conf.IPAM.Type, environment(c, verb), config)
		if err != nil {
			return errors.Join(append(errs, err)...) // the plugin is missing
		}
		_, err = i.run(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// call is one call of an IPAM plugin. The plugin's CNI_ variables come only from these fields, not
// from the environment of the process, because a sweep makes calls for other attachments.
type call struct {
	plugin string
	binary string
	env    pluginEnv
	config []byte
}

func newCall(plugin string, env pluginEnv, config []byte) (*call, error) {
	binary, err := findPlugin(plugin, env.path)
	if err != nil {
		return nil, failure.From(err, failure.IPAM, "IPAM plugin %q", plugin).Cure("install the plugin in the CNI binary directory, or correct the type")
	}
	return &call{plugin: plugin, binary: binary, config: config, env: env}, nil
}

func environment(c *attachment.Call, verb string) pluginEnv {
	return pluginEnv{command: verb, containerID: c.ContainerID, netns: c.Netns, ifName: c.IfName, args: c.Args, path: c.Path}
}

func (i *call) run(ctx context.Context) ([]byte, error) {
	stdout, err := execPlugin(ctx, i.binary, i.env, i.config)
	return stdout, i.failed(err)
}

// add runs ADD and returns its result.
func (i *call) add(ctx context.Context, version string) (*current.Result, error) {
	stdout, err := i.run(ctx)
	if err != nil {
		return nil, err
	}
	decoded, err := decodeResult(stdout, version)
	if err != nil {
		return nil, i.failed(err)
	}
	result, err := current.NewResultFromResult(decoded)
	return result, i.failed(err)
}

// failed returns the plugin's error. The error keeps its kind if a runtime acts on that kind.
func (i *call) failed(err error) error {
	kind := failure.IPAM
	switch k := cnierr.KindOf(cnierr.Code(err)); k {
	case failure.TryAgain, failure.NotAvailable, failure.Limited, failure.InvalidConfig:
		kind = k
	}
	return failure.Wrap(err, kind, "IPAM plugin %q, %s", i.plugin, i.env.command)
}
