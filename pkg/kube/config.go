package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

const (
	defaultTimeout   = 10 * time.Second
	defaultNamespace = "kube-system" // where whereabouts keeps its objects when the context names none
	serviceAccount   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Config says how to reach the server.
type Config struct {
	Kubeconfig string        // path of the file; "" is a pod's service account
	Namespace  string        // "" is that of the kubeconfig's context, or of the service account
	UserAgent  string        // "rail-cni" when empty; the server's audit log has it
	Timeout    time.Duration // of one request, 10 s when 0
	// RetryFor bounds how long after its first try a request is tried again; 0
	// is as long as the caller's context allows. A try that is under way is not
	// broken off.
	RetryFor time.Duration

	// Vet, unless nil, is called before a Kubeconfig is used, with the program
	// that it runs and the files that it names. Open returns its error.
	Vet func(program string, files []string) error

	// ServiceAccount is the directory with token, ca.crt and namespace that
	// the kubelet mounts into a pod; "" is its usual place. Read only without
	// a Kubeconfig.
	ServiceAccount string
}

// Client sends requests to one API server, as one user. It may be used by many
// goroutines at a time. There is nothing to close.
//
// Tokens and CAs are replaced while a client lives, in their own files or in
// the kubeconfig: a token file is read again every minute, and all of them
// when the server refuses who we are, or is not the one that we trust.
type Client struct {
	config    Config
	http      atomic.Pointer[http.Client]
	base      *url.URL
	namespace string
	from      origin
	heard     atomic.Pointer[heard]
}

// Open reads the kubeconfig (or service account) and all files that it names.
// No request is made. Errors have the code InvalidConfig.
func Open(c Config) (*Client, error) {
	if c.ServiceAccount == "" {
		c.ServiceAccount = serviceAccount
	}
	if c.UserAgent == "" {
		c.UserAgent = "rail-cni"
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	loaded, err := c.load()
	if err != nil {
		return nil, err
	}

	base, _, err := rest.DefaultServerUrlFor(loaded.rest)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.InvalidConfig, "the server must be like https://10.96.0.1:443", "%s: server %q", loaded.source, loaded.rest.Host)
	}
	if loopback(base.Hostname()) {
		loaded.rest.DisableCompression = true // costs both sides more than the copy that it saves
	}
	client, err := rest.HTTPClientFor(loaded.rest)
	if err != nil {
		return nil, cnierr.Wrap(err, cnierr.InvalidConfig, "certificates, keys and tokens must be whole and readable", "%s", loaded.source)
	}
	opened := &Client{
		config:    c,
		base:      base,
		namespace: cmp.Or(c.Namespace, loaded.namespace, defaultNamespace),
		from:      origin{source: loaded.source, credentials: credentials(loaded.rest, loaded.source)},
	}
	opened.http.Store(client)
	return opened, nil
}

// renew reads all files again. It changes nothing when they cannot be read, or
// are by now about another server.
func (c *Client) renew() {
	fresh, err := Open(c.config)
	if err != nil || fresh.Server() != c.Server() {
		return
	}
	c.hangUp()
	c.http.Store(fresh.http.Load())
}

// hangUp closes the connections that carry no request now. (What rest makes has
// wrappers through which http.Client's own method does not reach.)
func (c *Client) hangUp() { utilnet.CloseIdleConnectionsFor(c.http.Load().Transport) }

// origin is where a client's parts came from, for errors.
type origin struct {
	source      string // of server and CA
	credentials string // what the server knows us by, and its file
}

// Namespace is that of the Config, else that of the kubeconfig's current context
// or of the service account; "kube-system" when there is none, as whereabouts
// has it.
func (c *Client) Namespace() string { return c.namespace }

// Server is the server's URL, like https://10.96.0.1:443.
func (c *Client) Server() string { return c.base.String() }

type loaded struct {
	rest      *rest.Config
	namespace string
	source    string // "kubeconfig /etc/…", for errors
}

func (c *Config) load() (*loaded, error) {
	if c.Kubeconfig == "" {
		return loadServiceAccount(c.ServiceAccount)
	}
	return loadKubeconfig(c.Kubeconfig, c.Vet)
}

func loadKubeconfig(path string, vet func(program string, files []string) error) (*loaded, error) {
	bad := func(err error, cure, format string, args ...any) error {
		return cnierr.Wrap(err, cnierr.InvalidConfig, cure, "kubeconfig "+path+format, args...)
	}
	// client-go takes an empty file for an empty configuration, and its errors
	// name neither the file nor, mostly, what is missing in it.
	file, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad(err, "whereabouts' installer writes it on each node; kubernetes.kubeconfig says where it is", "")
	}
	if err != nil {
		return nil, bad(err, "it must be a readable YAML or JSON file of the kind Config", "")
	}
	if file.CurrentContext == "" {
		return nil, bad(errors.New("no current-context"), "name one of its contexts there", "")
	}
	current, ok := file.Contexts[file.CurrentContext]
	if !ok {
		return nil, bad(errors.New("not among its contexts"), "", ": current-context %q", file.CurrentContext)
	}
	// client-go would go on without credentials.
	if _, ok := file.AuthInfos[current.AuthInfo]; !ok {
		return nil, bad(errors.New("not among its users"), "", ": user %q of the context %q", current.AuthInfo, file.CurrentContext)
	}
	cluster, ok := file.Clusters[current.Cluster]
	if !ok {
		return nil, bad(errors.New("not among its clusters"), "", ": cluster %q of the context %q", current.Cluster, file.CurrentContext)
	}
	if cluster.Server == "" {
		return nil, bad(errors.New("no server"), "it must be like https://10.96.0.1:443", ": cluster %q", current.Cluster)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, bad(err, "", "")
	}
	if vet != nil {
		if err := vet(leads(file.AuthInfos[current.AuthInfo], cluster)); err != nil {
			return nil, err
		}
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, bad(err, "", "")
	}
	if config.ExecProvider != nil {
		// Standard input is the plugin's network configuration.
		config.ExecProvider.InteractiveMode = clientcmdapi.NeverExecInteractiveMode
	}
	return &loaded{rest: config, namespace: current.Namespace, source: "kubeconfig " + path}, nil
}

// leads returns the program that provides the user's credentials, and the files
// that the user and the cluster name.
func leads(user *clientcmdapi.AuthInfo, cluster *clientcmdapi.Cluster) (program string, files []string) {
	if user.Exec != nil {
		program = strconv.Quote(user.Exec.Command)
	}
	for _, name := range []string{user.TokenFile, user.ClientCertificate, user.ClientKey, cluster.CertificateAuthority} {
		if name != "" {
			files = append(files, name)
		}
	}
	return program, files
}

// loadServiceAccount reads what the kubelet gives to each container: three
// files, and the server's address in the environment. Source: Kubernetes,
// "Accessing the Kubernetes API from a Pod".
func loadServiceAccount(dir string) (*loaded, error) {
	const cure = "outside of a pod with a service account, give a kubeconfig"
	source := "service account " + dir
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, cnierr.New(cnierr.InvalidConfig, cure, "%s: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set", source)
	}
	config := &rest.Config{Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(dir, "token")}
	config.CAFile = filepath.Join(dir, "ca.crt")
	for _, file := range []string{config.BearerTokenFile, config.CAFile} {
		if _, err := os.Stat(file); err != nil {
			return nil, cnierr.Wrap(err, cnierr.InvalidConfig, cure, "%s", source)
		}
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cnierr.Wrap(err, cnierr.InvalidConfig, cure, "%s", source)
	}
	return &loaded{rest: config, namespace: strings.TrimSpace(string(namespace)), source: source}, nil
}

// credentials says what a server that answers 401 has refused.
func credentials(c *rest.Config, source string) string {
	switch {
	case c.BearerTokenFile != "":
		return "the token in " + c.BearerTokenFile
	case c.BearerToken != "":
		return "the token in " + source
	case c.ExecProvider != nil:
		return fmt.Sprintf("what the exec plugin %s of %s gives", c.ExecProvider.Command, source)
	case c.CertFile != "":
		return "the client certificate " + c.CertFile
	case len(c.CertData) > 0:
		return "the client certificate in " + source
	case c.Username != "":
		return fmt.Sprintf("the user %q and the password in %s", c.Username, source)
	}
	return "a request without credentials, because there are none in " + source
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
