// Package cluster is how the commands find the API server and the node's side
// of its address store.
package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// Flags are those of every command that talks to the cluster.
type Flags struct{ Kubeconfig, Namespace string }

// Add adds the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig file; else the first of $KUBECONFIG, else that of whereabouts' flat file, else a pod's service account")
	flags.StringVar(&f.Namespace, "namespace", "", "namespace of the address pools; else that of the kubeconfig's context, else kube-system")
}

// Kubeconfig returns what the flag says, or else the first file of the list
// $KUBECONFIG that exists; of none that does the first, for the error to name,
// and "" when there is no list. (kubectl would merge them all.)
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

// Open opens the cluster that the flags mean, without a request. userAgent is
// for the server's log.
func (f *Flags) Open(userAgent string) (*kube.Client, error) {
	client, _, err := f.open(userAgent, 0)
	return client, err
}

// open also returns the kubeconfig, "" when it is a pod's service account.
func (f *Flags) open(userAgent string, retryFor time.Duration) (*kube.Client, string, error) {
	path := Kubeconfig(f.Kubeconfig)
	var err error
	if path == "" {
		if path, err = OfPlugins(); err != nil {
			return nil, "", err
		}
	}
	client, err := kube.Open(kube.Config{Kubeconfig: path, Namespace: f.Namespace, UserAgent: userAgent, RetryFor: retryFor})
	if path == "" && err != nil {
		return nil, "", failure.WithCure(failure.Wrap(err, failure.InvalidConfig, "there is no kubeconfig: none in whereabouts' flat file, and this is no pod with a service account"),
			"name one by --kubeconfig or $KUBECONFIG")
	}
	return client, path, err
}

// OfPlugins returns the kubeconfig that the plugins of this node find in
// whereabouts' flat file, "" when there is none.
func OfPlugins() (string, error) {
	conf, err := netconf.ParseWhereabouts([]byte(`{"name":"cluster","ipam":{}}`), "", netconf.WhereaboutsFlatFiles())
	if err != nil {
		return "", err
	}
	return conf.Kubeconfig, nil
}

// Store opens the node's side of the store, to replay what the plugins of this
// node have left in the journal for the same server and namespace, whatever
// kubeconfig they have.
func (f *Flags) Store(userAgent, stateDir string) (*store.Store, error) {
	client, path, err := f.open(userAgent, store.RetryFor)
	if err != nil {
		return nil, err
	}
	plugins, err := OfPlugins()
	if err != nil {
		return nil, err
	}
	// What is noted is for the plugins, which may have no other way.
	if plugins != "" && store.SameServer(client, store.Endpoint{Kubeconfig: plugins}) {
		path = plugins
	}
	return store.New(store.Options{
		Client: client, Kubeconfig: path,
		StateDir: stateDir, JournalDir: netconf.JournalDir(stateDir),
	})
}
