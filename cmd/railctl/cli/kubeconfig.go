package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/homedir"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// kubectlFlags are the flags of kubectl that choose the cluster and the user.
type kubectlFlags struct{ context, cluster string }

// silentTries is the maximum number of tries while the server has never answered.
const silentTries = 3

const kubeconfigHelp = "kubeconfig file (default: the merged files of $KUBECONFIG, or ~/.kube/config"

// AddClusterFlags adds the flags with which a command finds the API server in the same way as
// kubectl.
func AddClusterFlags(cmd *cobra.Command, f *cluster.Flags) {
	k := &kubectlFlags{}
	flags := cmd.Flags()
	help := kubeconfigHelp + ", or the kubeconfig of whereabouts' flat file"
	if f.WithoutPlugins {
		help = kubeconfigHelp
	}
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", help+", or a pod's service account)")
	flags.StringVar(&k.context, "context", "", "context of the kubeconfig (default: its current context)")
	if flags.Lookup("cluster") == nil { // "doctor collect" has a different flag with this name
		flags.StringVar(&k.cluster, "cluster", "", "cluster of the kubeconfig (default: the context's cluster)")
	}
	flags.DurationVar(&f.Access.Timeout, "request-timeout", 0, "time limit of one request (default: 10s)")
	f.Find, f.Access.SilentTries = k.find, silentTries
	f.Access.Waiting = func(server string) {
		Note(cmd.ErrOrStderr(), "waiting for %s, which does not answer", cell.Printable(server))
	}
}

// AddPoolFlags adds the flags of AddClusterFlags, and the flag for the namespace of the address pools.
func AddPoolFlags(cmd *cobra.Command, f *cluster.Flags) {
	AddClusterFlags(cmd, f)
	cmd.Flags().StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the address pools (default: the namespace of the kubeconfig's context, or kube-system)")
}

// find returns the kubeconfig files that kubectl would read, and a function that reads the access
// to the cluster from these files.
func (k *kubectlFlags) find(flag string) (files []string, load func() (*kube.Access, error), err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = flag
	named := flag != "" || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != ""
	if !named {
		rules.Precedence = []string{filepath.Join(homedir.HomeDir(), clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)}
	}
	candidates := rules.GetLoadingPrecedence()
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			files = append(files, path)
		}
	}
	if len(files) == 0 && !named {
		if k.context != "" || k.cluster != "" {
			return nil, nil, fmt.Errorf("--context and --cluster need a kubeconfig, and %s does not exist", strings.Join(candidates, ", "))
		}
		return nil, nil, nil
	}
	if len(files) == 0 {
		return nil, nil, failure.From(unix.ENOENT, failure.InvalidConfig, "kubeconfig %s", strings.Join(candidates, ", ")).
			Cure("name a file that exists with --kubeconfig or $KUBECONFIG")
	}
	return files, func() (*kube.Access, error) { return k.access(rules) }, nil
}

// access returns the access to the cluster that kubectl would get from the kubeconfig, with the
// context and the cluster of the flags. If the kubeconfig names a program for credentials,
// client-go runs this program.
func (k *kubectlFlags) access(rules *clientcmd.ClientConfigLoadingRules) (*kube.Access, error) {
	config, err := k.merged(rules)
	if err != nil {
		return nil, err
	}
	access, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	a := &kube.Access{Namespace: config.Contexts[config.CurrentContext].Namespace}
	if access.ExecProvider != nil {
		a.Program = access.ExecProvider.Command
	}
	if a.Server, _, err = rest.DefaultServerUrlFor(access); err != nil {
		return nil, err
	}
	a.Transport, err = access.TransportConfig()
	return a, err
}

// merged returns the kubeconfig files as one config that has only the current context, its cluster
// and its user.
func (k *kubectlFlags) merged(rules *clientcmd.ClientConfigLoadingRules) (*api.Config, error) {
	config, err := rules.Load()
	if err != nil {
		return nil, err
	}
	if k.context != "" {
		if config.Contexts[k.context] == nil {
			return nil, fmt.Errorf("there is no context %q; the contexts are %s", k.context, keysOf(config.Contexts))
		}
		config.CurrentContext = k.context
	}
	if config.CurrentContext == "" {
		return nil, errors.New("no current-context: name a context with --context")
	}
	if current := config.Contexts[config.CurrentContext]; k.cluster != "" && current != nil {
		if config.Clusters[k.cluster] == nil {
			return nil, fmt.Errorf("there is no cluster %q; the clusters are %s", k.cluster, keysOf(config.Clusters))
		}
		current.Cluster = k.cluster
	}
	return config, api.MinifyConfig(config)
}

// keysOf returns the keys of a map as a text for a sentence.
func keysOf[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		names = append(names, fmt.Sprintf("%q", name))
	}
	return strings.Join(names, ", ")
}
