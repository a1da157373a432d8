package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/credential"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/install/node"
	"github.com/rail-cni/rail-cni/pkg/keeper"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// installFlags are the flags of "run" for the installation of the plugins.
type installFlags struct {
	enabled, uninstall, force bool
	prefix, nodeFile          string
	toolDir                   string
	plugins                   []string
	record                    string
	credential                credentialFlags
}

// credentialFlags are the flags of "run" for the kubeconfig of the plugin
// whereabouts.
type credentialFlags struct {
	confDir, account, server, namespace string
	replace                             bool
	lifetime                            time.Duration
}

func (f *credentialFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.confDir, "cni-conf", "",
		"configuration directory of the container runtime; the kubeconfig and the flat file of whereabouts are written below this directory; if empty, they are not written")
	flags.StringVar(&f.account, "plugin-account", "rail-cni-whereabouts", "service account whose token the plugin whereabouts gets, in the agent's namespace")
	flags.DurationVar(&f.lifetime, "token-lifetime", 24*time.Hour, "lifetime of this token; the agent renews the token after half of the time")
	flags.StringVar(&f.server, "api-server", "", "URL of the API server for the plugin whereabouts (default: the URL that the agent uses)")
	flags.StringVar(&f.namespace, "pool-namespace", "", "namespace of the address pools (default: the agent's own namespace)")
	flags.BoolVar(&f.replace, "replace-whereabouts-files", false,
		"replace files of whereabouts' own installer at once; without this flag, the plugin uses these files until the API server refuses their token")
}

func addRecordFlag(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "record", install.DefaultDir, "directory of the record of installed files and the files that they replaced")
}

func (f *installFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.enabled, "install", false, "install the plugins of --own into each --cni-bin, "+
		"back up the files that they replace, and restore the plugins if they are replaced")
	flags.StringSliceVar(&f.plugins, "plugins", node.DefaultPlugins, "plugins to install and to watch, from this list: "+strings.Join(node.PluginNames, ", "))
	flags.StringVar(&f.prefix, "prefix", "", `prefix of the installed plugins' names: "rail-" makes rail-host-device, …`)
	flags.BoolVar(&f.uninstall, "uninstall", false, "remove what --install has installed, as soon as no pod needs it; the agent becomes ready after that")
	flags.BoolVar(&f.force, "force", false, "with --uninstall: remove the files at once, even if pods need the plugins")
	flags.StringVar(&f.nodeFile, "node-file", "",
		"with --install: text of the node file to write to "+nodefile.InstalledPath+"; it limits what networks may use on a node that has no "+nodefile.DefaultPath)
	flags.StringVar(&f.toolDir, "railctl-dir", "",
		"with --install: also install railctl into this directory, for people on the node; railctl is copied from the directory of the agent's program, "+
			"but does not replace a railctl of a package or a person; "+
			"without this flag, a railctl that was installed earlier is removed if its directory is still mounted into the agent's pod")
	addRecordFlag(flags, &f.record)
	f.credential.add(flags)
}

// check returns an error if a value is invalid, or if a name would lead to another directory.
func (f *installFlags) check() error {
	for _, name := range f.plugins {
		if !slices.Contains(node.PluginNames, name) {
			return fmt.Errorf("--plugins names the unknown plugin %q; the plugins are %s", name, strings.Join(node.PluginNames, ", "))
		}
	}
	if f.credential.lifetime < credential.ShortestLifetime {
		return fmt.Errorf("--token-lifetime is %v, but the API server issues no token for less than %v", f.credential.lifetime, credential.ShortestLifetime)
	}
	if f.nodeFile != "" {
		if _, err := nodefile.Parse([]byte(f.nodeFile)); err != nil {
			return fmt.Errorf("--node-file: %w", err)
		}
	}
	if f.toolDir != "" && !filepath.IsAbs(f.toolDir) {
		return fmt.Errorf("--railctl-dir is %q; it must be an absolute path", f.toolDir)
	}
	if strings.ContainsAny(f.prefix, "/ ") || strings.HasPrefix(f.prefix, ".") {
		return fmt.Errorf("--prefix is %q, which cannot be the beginning of a program's name", f.prefix)
	}
	return nil
}

// components installs or uninstalls the plugins. It returns the components that continue this work
// and watch the plugins. If restore is true, they also restore plugins that another program has
// replaced.
func (f *installFlags) components(ctx context.Context, h *host, restore bool) ([]component.Component, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.enabled && len(h.binDirs) == 0 {
		return nil, errors.New("--install needs a CNI directory; name it with --cni-bin")
	}
	plugins := node.Plugins{BinDirs: h.binDirs, Own: h.pluginDir, Names: f.plugins, Prefix: f.prefix, NodeFile: f.nodeFile, Log: h.log}
	var components []component.Component
	if f.enabled || f.uninstall {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		plugins.Tool, plugins.ToolDir = filepath.Join(filepath.Dir(program), "railctl"), f.toolDir
		restore, plugins.Record = true, install.Open(f.record)
		if components, err = f.install(ctx, h, plugins); err != nil {
			return nil, err
		}
	}
	watcher := &node.Watcher{Plugins: plugins, Restore: restore, Version: version, Dirs: h.dirs}
	watch, err := watcher.Component(h.notify)
	return append(components, watch), err
}

// install installs or uninstalls the plugins, and returns the components that continue this work.
func (f *installFlags) install(ctx context.Context, h *host, plugins node.Plugins) ([]component.Component, error) {
	inUse := func() []string { return node.Users(h.stateDirs) }
	put := plugins.Record.Put
	if f.uninstall {
		put = plugins.Record.PutBack // files that somebody has removed are not restored
	} else if err := plugins.Record.Visible(append(slices.Clone(h.binDirs), filepath.Join(f.credential.confDir, credential.Dir), f.toolDir)...); err != nil {
		return nil, fmt.Errorf("files that an earlier version installed elsewhere cannot be removed; restore the earlier settings, uninstall, and then change the settings: %w", err)
	} else if err := plugins.Put(ctx, inUse); err != nil {
		return nil, err
	}
	components, err := f.keepCredential(h, put)
	if err != nil || !f.uninstall {
		return components, err
	}
	stop := func() {}
	for i := range components { // the uninstaller ends this component, which does not decide whether the agent is ready
		components[i].Run, stop = stoppable(ctx, components[i].Run)
		components[i].Ready = nil
	}
	reporter := component.NewReporter("uninstaller", h.log, h.notify)
	u := &node.Uninstaller{Plugins: plugins, InUse: inUse, Force: f.force, Stop: stop, Notify: func(n component.Notice) { reporter.Report(n) }}
	return append(components, component.Component{Name: "uninstaller", Reporter: reporter, Run: u.Run, Ready: u.Ready}), nil
}

// stoppable returns a function that runs run, and a function stop. stop ends run, and waits until
// run has ended or ctx ends.
func stoppable(ctx context.Context, run func(context.Context)) (runs func(context.Context), stop func()) {
	stopped, cancel := context.WithCancel(ctx)
	ended, end := context.WithCancel(ctx)
	runs = func(context.Context) {
		run(stopped)
		end() // not reached after a panic, because then run is started again
	}
	return runs, func() {
		cancel()
		<-ended.Done()
	}
}

// keepCredential returns the keeper of the kubeconfig of the plugin whereabouts. It returns nil if
// no kubeconfig is to be kept.
func (f *installFlags) keepCredential(h *host, put func(context.Context, install.File) (install.Outcome, error)) ([]component.Component, error) {
	flags := f.credential
	if flags.confDir == "" || !slices.Contains(f.plugins, "whereabouts") {
		return nil, nil
	}
	if h.client == nil {
		return nil, errors.New("--cni-conf needs a cluster; name a kubeconfig with --kubeconfig, or leave out --cni-conf")
	}
	k := credential.New(credential.Options{
		Client: h.client, ConfDir: flags.confDir, Node: h.name, Account: flags.account, Namespace: h.client.Namespace(), Lifetime: flags.lifetime,
		Server: flags.server, PoolNamespace: flags.namespace, Replace: flags.replace, Put: put, UserAgent: userAgent(),
		Dirs: h.dirs, Log: h.log, Notify: h.notify,
	})
	return []component.Component{k.Component()}, nil
}

func newUninstall(a *agentFlags) *cobra.Command {
	var record string
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the files that run --install has put on this node",
		Long: `Remove the files that "run --install" has put on this node, and restore the earlier
files, byte for byte. First end "rail-agent run", because it would install the
files again.

If a pod still holds a NIC, or an address still waits to be freed, the command does
nothing, and the exit code is 1. The reason is that the runtime needs the plugins
when these pods end. With --force, the command removes the files nevertheless. In a
cluster, "railctl uninstall" removes the files on all nodes.`,
		Args: cobra.NoArgs,
	}
	addRecordFlag(cmd.Flags(), &record)
	cmd.Flags().BoolVar(&force, "force", false, "remove the files at once, even if pods need the plugins")
	cmd.RunE = func(*cobra.Command, []string) error {
		if os.Geteuid() != 0 {
			return errors.New("the installed files belong to root; run rail-agent uninstall as root")
		}
		if pods := node.Users(a.stateDirs); len(pods) > 0 && !force {
			return fmt.Errorf("the plugins are still needed: %s; end these pods first, or use --force", strings.Join(pods, "; "))
		}
		if err := node.Remove(install.Open(record), a.log); err != nil {
			return err
		}
		return keeper.RemoveStateDirs(keeper.MainStateDir(a.stateDirs))
	}
	return cmd
}
