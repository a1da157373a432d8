// Package cluster finds the API server and the node's side of the address store for the commands.
// Both belong to the server and the namespace that the flags name. A command embeds [Flags] and
// calls [Flags.Open].
package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// Flags are the flags that every command has that uses the cluster.
type Flags struct {
	Kubeconfig, Namespace string

	// Find, if it is not nil, finds the kubeconfig in place of [Kubeconfig]. It returns the files
	// of the kubeconfig, and a function that reads the access to the cluster from these files. It
	// returns no files if there is no kubeconfig.
	Find func(flag string) (files []string, load func() (*kube.Access, error), err error)
	// WithoutPlugins is true if the kubeconfig of the node's plugins must not be used. That
	// kubeconfig has only the rights that plugins need.
	WithoutPlugins bool
	// Access has the other settings of the client.
	Access kube.Config
}

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: the first of $KUBECONFIG, "+
		"or the kubeconfig of whereabouts' flat file, or a pod's service account)")
	flags.StringVar(&f.Namespace, "namespace", "", "namespace of the address pools (default: the namespace of the kubeconfig's context, or kube-system)")
}

// Kubeconfig returns flag if it is not "". Otherwise it returns the first file in the list
// $KUBECONFIG that exists. If no file in the list exists, it returns the first one, so that the
// error names this file. Without a list it returns "". (kubectl would merge all files.)
func Kubeconfig(flag string) string {
	named := slices.DeleteFunc(filepath.SplitList(os.Getenv("KUBECONFIG")), func(path string) bool { return path == "" })
	if flag != "" || len(named) == 0 {
		return flag
	}
	i := slices.IndexFunc(named, func(path string) bool {
		_, err := os.Stat(path)
		return !errors.Is(err, fs.ErrNotExist)
	})
	return named[max(i, 0)]
}

// Open returns a client for the cluster that the flags name. It sends no request. userAgent appears
// in the server's log.
func (f *Flags) Open(userAgent string) (*kube.Client, error) {
	client, _, err := f.open(userAgent, 0)
	return client, err
}

// open does the same as Open, and also returns the path of the kubeconfig. The path is "" for the
// service account of a pod.
func (f *Flags) open(userAgent string, retryFor time.Duration) (*kube.Client, string, error) {
	conf, path, err := f.config()
	if err != nil {
		return nil, "", err
	}
	conf.Namespace, conf.UserAgent = f.Namespace, userAgent
	if conf.RetryFor == 0 {
		conf.RetryFor = retryFor
	}
	client, err := kube.Open(conf)
	if path == "" && err != nil {
		reason := "whereabouts' flat file names none, and this is not a pod with a service account"
		if f.WithoutPlugins {
			reason = "this is not a pod with a service account"
		}
		return nil, "", failure.From(err, failure.InvalidConfig, "there is no kubeconfig: %s", reason).Cure("name one with --kubeconfig or $KUBECONFIG")
	}
	return client, path, err
}

// config returns the settings to reach the server, and the path of the kubeconfig. If there are
// several files, it is the path of the first.
func (f *Flags) config() (conf kube.Config, path string, err error) {
	conf = f.Access
	if f.Find != nil {
		files, load, err := f.Find(f.Kubeconfig)
		if err != nil {
			return conf, "", err
		}
		if len(files) > 0 {
			conf.Kubeconfig, conf.Load = strings.Join(files, ", "), load
			return conf, files[0], nil
		}
	} else {
		conf.Kubeconfig = Kubeconfig(f.Kubeconfig)
	}
	if conf.Kubeconfig == "" && !f.WithoutPlugins {
		conf.Kubeconfig, err = OfPlugins()
	}
	return conf, conf.Kubeconfig, err
}

// Named reports whether the user has named a kubeconfig, by a flag or by $KUBECONFIG.
func (f *Flags) Named() bool {
	if f.Find == nil {
		return Kubeconfig(f.Kubeconfig) != ""
	}
	files, _, err := f.Find(f.Kubeconfig)
	return err != nil || len(files) > 0
}

// OfPlugins returns the kubeconfig of this node's plugins, which whereabouts' flat file names. It
// returns "" if there is none.
func OfPlugins() (string, error) {
	conf, err := ipamconf.ParseWhereabouts([]byte(`{"name":"cluster","ipam":{}}`), "", ipamconf.WhereaboutsFlatFiles())
	if err != nil {
		return "", err
	}
	return conf.Kubeconfig, nil
}

// Store opens the node's side of the address store. The store replays the journal of this node's
// plugins for the same server and namespace. It does so for any kubeconfig that leads the plugins
// there.
func (f *Flags) Store(userAgent, stateDir string) (*store.Store, error) {
	client, path, err := f.open(userAgent, store.RetryFor)
	if err != nil {
		return nil, err
	}
	plugins, err := OfPlugins()
	if err != nil {
		return nil, err
	}
	// The notes are for the plugins, which may be able to reach the server only by these notes.
	if plugins != "" && store.SameServer(client, store.Endpoint{Kubeconfig: plugins}) {
		path = plugins
	}
	return store.New(store.Options{
		Client: client, Kubeconfig: path,
		StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir),
	})
}
