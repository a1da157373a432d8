// Package cluster finds the API server and the node's side of its address store
// for the commands. Both are of one server and namespace: the ones that the flags
// name. Commands embed [Flags] and call [Flags.Open].
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
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// Flags are the flags of every command that uses the cluster.
type Flags struct {
	Kubeconfig, Namespace string

	// Find, unless nil, finds the kubeconfig, rather than [Kubeconfig]. It returns the
	// kubeconfig's files, none if there are none, and a function that reads the access
	// from them.
	Find func(flag string) (files []string, load func() (*kube.Access, error), err error)
	// WithoutPlugins: the kubeconfig of the node's plugins, which has only the
	// plugins' rights, is not used.
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

// Kubeconfig returns flag or, if that is "", the first existing file of the
// list $KUBECONFIG. If none of the list exists it returns the first, so that
// the error names it; without a list it returns "". (kubectl would merge them
// all.)
func Kubeconfig(flag string) string {
	named := slices.DeleteFunc(filepath.SplitList(os.Getenv("KUBECONFIG")), func(path string) bool { return path == "" })
	if flag != "" || len(named) == 0 {
		return flag
	}
	there := slices.IndexFunc(named, func(path string) bool {
		_, err := os.Stat(path)
		return !errors.Is(err, fs.ErrNotExist)
	})
	return named[max(there, 0)]
}

// Open opens the cluster of the flags, without a request. userAgent appears in
// the server's log.
func (f *Flags) Open(userAgent string) (*kube.Client, error) {
	client, _, err := f.open(userAgent, 0)
	return client, err
}

// open also returns the kubeconfig's path, "" for a pod's service account.
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
		where := "none in whereabouts' flat file, and this is not a pod with a service account"
		if f.WithoutPlugins {
			where = "this is not a pod with a service account"
		}
		return nil, "", failure.From(err, failure.InvalidConfig, "there is no kubeconfig: %s", where).Cure("name one with --kubeconfig or $KUBECONFIG")
	}
	return client, path, err
}

// config returns how the server is reached, and the path of the kubeconfig, the first of
// several.
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

// Named reports whether the user has named a kubeconfig.
func (f *Flags) Named() bool {
	if f.Find == nil {
		return Kubeconfig(f.Kubeconfig) != ""
	}
	files, _, err := f.Find(f.Kubeconfig)
	return err != nil || len(files) > 0
}

// OfPlugins returns the kubeconfig of this node's plugins, from whereabouts'
// flat file, "" if there is none.
func OfPlugins() (string, error) {
	conf, err := netconf.ParseWhereabouts([]byte(`{"name":"cluster","ipam":{}}`), "", netconf.WhereaboutsFlatFiles())
	if err != nil {
		return "", err
	}
	return conf.Kubeconfig, nil
}

// Store opens the node's side of the store, to replay the journal of this
// node's plugins for the same server and namespace, with any kubeconfig of
// theirs.
func (f *Flags) Store(userAgent, stateDir string) (*store.Store, error) {
	client, path, err := f.open(userAgent, store.RetryFor)
	if err != nil {
		return nil, err
	}
	plugins, err := OfPlugins()
	if err != nil {
		return nil, err
	}
	// The notes are for the plugins, which may have no other way to the server.
	if plugins != "" && store.SameServer(client, store.Endpoint{Kubeconfig: plugins}) {
		path = plugins
	}
	return store.New(store.Options{
		Client: client, Kubeconfig: path,
		StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir),
	})
}
