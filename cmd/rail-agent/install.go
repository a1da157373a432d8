package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// mostTries bounds how often another's plugin may be found half written.
const mostTries = 10

// installation is the plugins that the agent puts on its node.
type installation struct {
	binDirs []string
	own     string
	plugins []string
	prefix  string
	// nodeFile is the text of the node file, "" for none.
	nodeFile string
	record   *install.Node
	log      *slog.Logger
}

// put installs the plugins, and takes away what an earlier version or another
// prefix had installed, as soon as nothing needs it.
func (i *installation) put(inUse func() []string) error {
	if err := i.putNodeFile(); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, dir := range i.binDirs {
		for _, name := range i.plugins {
			path := filepath.Join(dir, i.prefix+name)
			wanted[path] = true
			file := install.File{Path: path, Source: filepath.Join(i.own, name), Mode: agent.PluginMode}
			outcome, err := i.record.Put(file)
			for tries := 0; cnierr.Code(err) == cnierr.TryAgain && tries < mostTries; tries++ { // another's is just being written
				outcome, err = i.record.Put(file)
			}
			if err != nil {
				return err
			}
			i.log.Info("plugin", "path", path, "outcome", outcome)
		}
	}
	entries, err := i.record.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if wanted[e.Path] || !isPlugin(e.Path) {
			continue
		}
		if users := inUse(); len(users) > 0 {
			i.log.Info("not wanted any more, and kept while it may be needed", "path", e.Path, "users", users)
			continue
		}
		outcome, err := i.record.Remove(e.Path)
		if err != nil {
			return err
		}
		i.log.Info("not wanted any more", "path", e.Path, "outcome", outcome)
	}
	return nil
}

// putNodeFile writes the node file, or removes the one that it wrote earlier. Call
// it before the plugins are installed, which read the file. A file that somebody
// else wrote stays.
func (i *installation) putNodeFile() error {
	path := cmp.Or(os.Getenv(netconf.NodeFileEnv), netconf.InstalledNodeFile)
	if i.nodeFile == "" {
		outcome, err := i.record.Remove(path)
		if outcome != "" {
			i.log.Info("node file", "path", path, "outcome", outcome)
		}
		return err
	}
	outcome, err := i.record.Put(install.File{Path: path, Content: []byte(i.nodeFile + "\n"), Mode: readable, Yield: true})
	if err != nil {
		return err
	}
	i.log.Info("node file", "path", path, "outcome", outcome)
	if holds := netconf.NodeFilePath(); holds != path {
		i.log.Warn("node has a node file of its own, which overrides --node-file", "path", holds)
	}
	return nil
}

// isPlugin reports whether a path of the record is a plugin, and not a file that
// plugins read.
func isPlugin(path string) bool {
	return filepath.Base(filepath.Dir(path)) != whereaboutsDir && filepath.Ext(path) != filepath.Ext(netconf.InstalledNodeFile)
}

// remove takes away what is installed and chosen, the last first: a directory
// goes after what lies in it.
func remove(record *install.Node, log *slog.Logger, chosen func(path string) bool) error {
	entries, err := record.Entries()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range slices.Backward(entries) {
		if !chosen(e.Path) {
			continue
		}
		outcome, err := record.Remove(e.Path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("uninstalled", "path", e.Path, "outcome", outcome)
	}
	return errors.Join(errs...)
}

// users says who needs the plugins of this node: pods with NICs of ours, pods
// with addresses of ours by another plugin, and addresses that wait to be freed.
func users(stateDirs []string) []string {
	var all []string
	known := map[ledger.Key]bool{}
	for _, dir := range stateDirs {
		if ledger.Exists(dir) {
			l, err := ledger.Open(dir)
			if err != nil {
				all = append(all, err.Error())
				continue
			}
			records, errs := l.List()
			l.Close()
			for _, r := range records {
				known[r.Key] = true
				all = append(all, fmt.Sprintf("%s has %s as %s", r.Holder(), r.NICName(), r.IfName))
			}
			for _, err := range errs {
				all = append(all, err.Error())
			}
		}
		for _, n := range store.Allocations(dir) {
			if !known[ledger.Key{ContainerID: n.ContainerID, IfName: n.IfName}] {
				all = append(all, fmt.Sprintf("pod %s has the address %s at %s", n.PodRef, n.Addr, n.IfName))
			}
		}
	}
	switch waiting, err := (journal{stateDirs: stateDirs}).Waiting(); {
	case err != nil:
		all = append(all, err.Error())
	case waiting > 0:
		all = append(all, fmt.Sprintf("%d addresses of pods that ended wait to be freed", waiting))
	}
	return all
}

// uninstallation takes the plugins away once no pod needs them.
type uninstallation struct {
	installation
	force     bool
	stateDirs []string
	stop      func() // ends what keeps installing, and waits for that
	tell      func(agent.Notice)
	took      bool // the plugins, and has not put them back

	mu   sync.Mutex
	left string // what is still to be, "" when it is done
}

const (
	lookAgain = 2 * time.Second
	// lastCalls is how long a call of a plugin that began before its program
	// went may take to write its record.
	lastCalls = 2 * time.Second
)

// run ends when it is done, or with ctx.
func (u *uninstallation) run(ctx context.Context) {
	for ctx.Err() == nil {
		left := u.try(ctx)
		if u.set(left) {
			if left == "" {
				u.tell(agent.Notice{Reason: "Uninstalled", Message: "rail-cni's plugins are gone from this node, and what was there before is there"})
				return
			}
			u.tell(agent.Notice{Reason: "NotUninstalled", Message: left, Warning: true})
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

// try uninstalls unless somebody needs the plugins, and gives what is left.
func (u *uninstallation) try(ctx context.Context) string {
	inUse := func() string {
		if pods := users(u.stateDirs); len(pods) > 0 && !u.force {
			return "the plugins stay while they are needed: " + strings.Join(pods, "; ")
		}
		return ""
	}
	back := func(left string) string {
		errs := errorTexts(u.put(nobody))
		u.took = len(errs) > 0
		return strings.Join(append([]string{left}, errs...), "; ")
	}
	if left := inUse(); left != "" {
		if u.took || u.broken() {
			return back(left)
		}
		return left
	}
	u.took = true
	if err := remove(u.record, u.log, isPlugin); err != nil {
		return err.Error()
	}
	select {
	case <-ctx.Done():
	case <-time.After(lastCalls):
	}
	if left := inUse(); left != "" { // a pod came in the last moment
		return back(left)
	}
	u.stop()
	return strings.Join(errorTexts(remove(u.record, u.log, func(string) bool { return true })), "; ")
}

// broken says that a former try ended, with its process, between the plugins and
// the rest, which goes last.
func (u *uninstallation) broken() bool {
	entries, err := u.record.Entries()
	return err == nil && len(entries) > 0 && !slices.ContainsFunc(entries, func(e *install.Entry) bool { return isPlugin(e.Path) })
}

// nobody uses what is replaced.
func nobody() []string { return nil }

func errorTexts(err error) []string {
	if err == nil {
		return nil
	}
	return []string{err.Error()}
}

func (u *uninstallation) set(left string) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed = u.left != left
	u.left = left
	return changed
}

func (u *uninstallation) ready() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left != "" {
		return errors.New(u.left)
	}
	return nil
}

// installFlags are those of "run" that are about the installation.
type installFlags struct {
	on, uninstall, force bool
	prefix, nodeFile     string
	plugins              []string
	record               string
	credential           credentialFlags
}

func addRecordFlag(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "record", install.DefaultDir, "directory of what is installed where, and of what was there before")
}

func (f *installFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "install", false, "install the plugins of --own into each --cni-bin, keep what was there before, and keep ours there")
	flags.StringSliceVar(&f.plugins, "plugins", agent.Plugins, "which plugins to install and to watch")
	flags.StringVar(&f.prefix, "prefix", "", `installed plugins are named with this before their names: "rail-" makes rail-host-device, …`)
	flags.BoolVar(&f.uninstall, "uninstall", false, "take away what --install put there as soon as no pod needs it, and be ready then")
	flags.BoolVar(&f.force, "force", false, "with --uninstall: at once, whoever needs the plugins")
	flags.StringVar(&f.nodeFile, "node-file", "", "with --install: the text to write to "+netconf.InstalledNodeFile+", which limits what networks may use on a node without "+netconf.DefaultNodeFile)
	addRecordFlag(flags, &f.record)
	f.credential.add(flags)
}

// shortestToken is what a TokenRequest may ask for (Kubernetes API reference,
// TokenRequestSpec).
const shortestToken = 10 * time.Minute

// check refuses what cannot work, and names that would lead elsewhere.
func (f *installFlags) check() error {
	for _, name := range f.plugins {
		if !slices.Contains(agent.Plugins, name) {
			return fmt.Errorf("--plugins: %q is none of %s", name, strings.Join(agent.Plugins, ", "))
		}
	}
	if f.credential.lifetime < shortestToken {
		return fmt.Errorf("--token-lifetime %v: the API server gives no token for less than %v", f.credential.lifetime, shortestToken)
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

// begin installs or uninstalls, and has beside do what goes on until ctx ends.
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
	i := installation{binDirs: o.BinDirs, own: o.Own, plugins: f.plugins, prefix: f.prefix, nodeFile: f.nodeFile, record: install.Open(f.record), log: o.Log}
	o.Restore, o.Record, o.Uninstalling, o.Leaving = true, i.record, f.uninstall, f.uninstall && f.force
	put := i.record.Put
	if f.uninstall {
		put = i.record.PutBack // what is gone stays so
	} else if err := i.record.Visible(append(slices.Clone(o.BinDirs), filepath.Join(f.credential.confDir, whereaboutsDir))...); err != nil {
		return fmt.Errorf("what an earlier version installed elsewhere cannot be taken away (go back to its settings, uninstall, and then change them): %w", err)
	} else if err := i.put(func() []string { return users(o.StateDirs) }); err != nil {
		return err
	}
	stop := func() {}
	if f.credential.confDir != "" && slices.Contains(f.plugins, "whereabouts") {
		if client == nil {
			return errors.New("--cni-conf needs a cluster: name it by --kubeconfig, or leave both away")
		}
		c := &credential{
			credentialFlags: f.credential, client: client, namespace: client.Namespace(), node: o.NodeName, put: put,
			log: o.Log, outcomes: map[string]install.Outcome{}, err: errNotYet,
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		beside.Go(func() {
			defer close(ended)
			c.run(ctx)
		})
		stop = func() {
			cancel()
			<-ended
		}
		o.Ready = c.ready
	}
	if f.uninstall {
		u := &uninstallation{installation: i, force: f.force, stateDirs: o.StateDirs, stop: stop, left: "not looked yet"}
		u.tell = func(n agent.Notice) {
			o.Log.Info(n.Message, "reason", n.Reason)
			if o.Teller != nil {
				o.Teller.Tell(n)
			}
		}
		beside.Go(func() { u.run(ctx) })
		o.Ready = u.ready
	}
	return nil
}

func newUninstall(a *agentFlags) *cobra.Command {
	var record string
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take away what run --install put on this node",
		Long: `Take away what "run --install" put on this node, and put back what was there
before, byte for byte. End that first: it would install again.

While a pod holds a NIC of ours, or an address waits to be freed, nothing is
done, and the exit code is 1: the pod's end needs our plugins. --force does it
all the same. In a cluster "railctl uninstall" does it on all nodes.`,
		Args: cobra.NoArgs,
	}
	addRecordFlag(cmd.Flags(), &record)
	cmd.Flags().BoolVar(&force, "force", false, "at once, whoever needs the plugins")
	cmd.RunE = func(*cobra.Command, []string) error {
		if pods := users(a.stateDirs); len(pods) > 0 && !force {
			return fmt.Errorf("the plugins are needed: %s; end these first, or use --force", strings.Join(pods, "; "))
		}
		return remove(install.Open(record), a.log, func(string) bool { return true })
	}
	return cmd
}

// nodeName gives the node's name: the flag's, the environment's, the host's.
func nodeName(flag string) (string, error) {
	if name := cmp.Or(flag, os.Getenv("NODE_NAME")); name != "" {
		return name, nil
	}
	return os.Hostname()
}
