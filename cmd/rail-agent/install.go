package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/credential"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/install/node"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// installFlags are the flags of "run" for the installation.
type installFlags struct {
	on, uninstall, force bool
	prefix, nodeFile     string
	plugins              []string
	record               string
	credential           credentialFlags
}

// credentialFlags are the flags of "run" for the kubeconfig of the plugin
// whereabouts.
type credentialFlags struct {
	confDir, account, server, namespace string
	replace                             bool
	lifetime                            time.Duration
}

func (f *credentialFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.confDir, "cni-conf", "", "the runtime's configuration directory, below which the kubeconfig and the flat file of whereabouts are written; none when empty")
	flags.StringVar(&f.account, "plugin-account", "rail-cni-whereabouts", "service account, in the agent's namespace, whose token the plugin whereabouts gets")
	flags.DurationVar(&f.lifetime, "token-lifetime", 24*time.Hour, "life of that token, which is renewed when half of it is over")
	flags.StringVar(&f.server, "api-server", "", "the API server's URL for the plugin; the agent's own when empty")
	flags.StringVar(&f.namespace, "pool-namespace", "", "namespace of the address pools; the agent's own when empty")
	flags.BoolVar(&f.replace, "replace-whereabouts-files", false, "also replace the files of whereabouts' own installer, which otherwise stay and are used, until the API server refuses their token")
}

func addRecordFlag(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "record", install.DefaultDir, "directory of the record: what is installed where, and what was there before")
}

func (f *installFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "install", false, "install the plugins of --own into each --cni-bin, keep what was there before, and keep ours there")
	flags.StringSliceVar(&f.plugins, "plugins", agent.Plugins, "the plugins to install and to watch")
	flags.StringVar(&f.prefix, "prefix", "", `prefix of the installed plugins' names: "rail-" makes rail-host-device, …`)
	flags.BoolVar(&f.uninstall, "uninstall", false, "remove what --install put there as soon as no pod needs it, and be ready then")
	flags.BoolVar(&f.force, "force", false, "with --uninstall: at once, even if pods need the plugins")
	flags.StringVar(&f.nodeFile, "node-file", "", "with --install: the text to write to "+netconf.InstalledNodeFile+", which limits what networks may use on a node without "+netconf.DefaultNodeFile)
	addRecordFlag(flags, &f.record)
	f.credential.add(flags)
}

// check refuses invalid values, and names that would lead to another directory.
func (f *installFlags) check() error {
	for _, name := range f.plugins {
		if !slices.Contains(agent.Plugins, name) {
			return fmt.Errorf("--plugins: unknown plugin %q, want some of %s", name, strings.Join(agent.Plugins, ", "))
		}
	}
	if f.credential.lifetime < credential.ShortestLifetime {
		return fmt.Errorf("--token-lifetime %v: the API server gives no token for less than %v", f.credential.lifetime, credential.ShortestLifetime)
	}
	if f.nodeFile != "" {
		if _, err := netconf.ParseNodeFile([]byte(f.nodeFile)); err != nil {
			return fmt.Errorf("--node-file: %w", err)
		}
	}
	if strings.ContainsAny(f.prefix, "/ ") || strings.HasPrefix(f.prefix, ".") {
		return fmt.Errorf("--prefix %q cannot begin the name of a program", f.prefix)
	}
	return nil
}

// begin installs or uninstalls, and starts in beside the work that goes on
// until ctx ends.
func (f *installFlags) begin(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, client *kube.Client) error {
	if err := f.check(); err != nil {
		return err
	}
	o.Plugins, o.Prefix = f.plugins, f.prefix
	if !f.on && !f.uninstall {
		return nil
	}
	if f.on && len(o.BinDirs) == 0 {
		return errors.New("--install: name the CNI directory by --cni-bin")
	}
	plugins := node.Plugins{BinDirs: o.BinDirs, Own: o.Own, Names: f.plugins, Prefix: f.prefix, NodeFile: f.nodeFile, Record: install.Open(f.record), Log: o.Log}
	inUse := func() []string { return node.Users(o.StateDirs) }
	o.Restore, o.Record, o.Uninstalling, o.Leaving = true, plugins.Record, f.uninstall, f.uninstall && f.force
	put := plugins.Record.Put
	if f.uninstall {
		put = plugins.Record.PutBack // removed files stay removed
	} else if err := plugins.Record.Visible(append(slices.Clone(o.BinDirs), filepath.Join(f.credential.confDir, credential.Dir))...); err != nil {
		return fmt.Errorf("files that an earlier version installed elsewhere cannot be removed (restore its settings, uninstall, then change them): %w", err)
	} else if err := plugins.Put(ctx, inUse); err != nil {
		return err
	}
	stop, err := f.keepCredential(ctx, beside, o, client, put)
	if err != nil || !f.uninstall {
		return err
	}
	u := &node.Uninstaller{Plugins: plugins, InUse: inUse, Force: f.force, Stop: stop, Tell: func(n agent.Notice) {
		n.Write(o.Log)
		if o.Teller != nil {
			o.Teller.Tell(n)
		}
	}}
	beside.Go(func() { u.Run(ctx) })
	o.Ready = u.Ready
	return nil
}

// keepCredential starts a keeper of the plugin's kubeconfig in beside, if one is wanted.
// stop ends the keeper and waits for its end.
func (f *installFlags) keepCredential(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, client *kube.Client,
	put func(context.Context, install.File) (install.Outcome, error),
) (stop func(), err error) {
	of := f.credential
	if of.confDir == "" || !slices.Contains(f.plugins, "whereabouts") {
		return func() {}, nil
	}
	if client == nil {
		return nil, errors.New("--cni-conf needs a cluster: name it by --kubeconfig, or leave both away")
	}
	keeper := credential.New(credential.Options{
		Client: client, ConfDir: of.confDir, Node: o.NodeName, Account: of.account, Namespace: client.Namespace(), Lifetime: of.lifetime,
		Server: of.server, PoolNamespace: of.namespace, Replace: of.replace, Put: put, UserAgent: userAgent(), Log: o.Log,
		Tell: func(n agent.Notice) { o.Teller.Tell(n) }, // with a client there is one
	})
	o.Ready = keeper.Ready
	o.Kubeconfig = func() agent.Kubeconfig {
		use := keeper.Use()
		return agent.Kubeconfig{Path: use.Path, Ours: use.Ours, Accepted: use.Accepted, Refused: text(use.Refused), Unasked: text(use.Unasked)}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	beside.Go(func() {
		defer close(ended)
		keeper.Run(ctx)
	})
	return func() {
		cancel()
		<-ended
	}, nil
}

// text returns the text of an error, "" for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func newUninstall(a *agentFlags) *cobra.Command {
	var record string
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the files that run --install put on this node",
		Long: `Remove the files that "run --install" put on this node, and put back what was
there before, byte for byte. End "run" first: it would install them again.

While a pod holds a NIC of ours, or an address waits to be freed, nothing is
done, and the exit code is 1: these pods need our plugins at their end. --force
does it anyway. In a cluster "railctl uninstall" does it on all nodes.`,
		Args: cobra.NoArgs,
	}
	addRecordFlag(cmd.Flags(), &record)
	cmd.Flags().BoolVar(&force, "force", false, "at once, even if pods need the plugins")
	cmd.RunE = func(*cobra.Command, []string) error {
		if os.Geteuid() != 0 {
			return errors.New("what was installed is root's; run rail-agent uninstall as root")
		}
		if pods := node.Users(a.stateDirs); len(pods) > 0 && !force {
			return fmt.Errorf("the plugins are needed: %s; end these first, or use --force", strings.Join(pods, "; "))
		}
		if err := node.Remove(install.Open(record), a.log); err != nil {
			return err
		}
		return agent.RemoveStateDirs(agent.MainStateDir(a.stateDirs))
	}
	return cmd
}
