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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

const (
	defaultTimeout   = 10 * time.Second
	defaultNamespace = "kube-system" // whereabouts' namespace if the context has none
	serviceAccount   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Config configures the access to the server.
type Config struct {
	Kubeconfig string        // path of the file; "" is a pod's service account
	Namespace  string        // "" means the namespace of the kubeconfig's context or of the service account
	UserAgent  string        // "rail-cni" if empty; it is in the server's audit log
	Timeout    time.Duration // of one request, 10 s when 0
	// RetryFor bounds how long after its first try a request is repeated. If it is 0, only
	// the caller's context bounds that. RetryFor does not interrupt a try that is under
	// way.
	RetryFor time.Duration

	// Load, if it is not nil, returns the access. Kubeconfig then only names the source in
	// errors.
	Load func() (*Access, error)
	// SilentTries, if it is not 0, bounds how often a request is sent as long as the server
	// has never answered this client. It is for commands, so that a person need not wait
	// long.
	SilentTries int
	// Waiting, if it is not nil, is called once, with the server's URL, if the first answer
	// takes longer than a second.
	Waiting func(server string)

	// Vet, if it is not nil, is called before a Kubeconfig is used, with the files that the
	// kubeconfig names. If Vet returns an error, Open returns that error.
	Vet func(files []string) error

	// ServiceAccount is the directory with token, ca.crt and namespace that the kubelet
	// mounts into a pod. "" means the usual path. The directory is used only if Kubeconfig
	// is "".
	ServiceAccount string
}

// Client sends requests to one API server, as one user. It is safe for concurrent use, and
// needs no Close.
//
// Tokens and CAs may be replaced while a client lives, in their own files or in the
// kubeconfig. A token file is read again every minute. All files are read again when the
// server refuses the user, or when the client does not trust the server.
type Client struct {
	config     Config
	http       atomic.Pointer[http.Client]
	base       *url.URL
	namespace  string
	from       origin
	serverTime atomic.Pointer[serverTime]
	answered   atomic.Bool // the server has sent any HTTP answer
	waiting    sync.Once
}

// Open reads the kubeconfig (or the files of the service account) and all files that it
// names. It makes no request. Its errors are of kind InvalidConfig.
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

	if loopback(loaded.Server.Hostname()) {
		loaded.Transport.DisableCompression = true // compressing costs both sides more than it saves
	}
	round, err := transport.New(loaded.Transport)
	if err != nil {
		return nil, failure.From(err, failure.InvalidConfig, "%s", loaded.source).Cure("make the certificates, keys and tokens complete and readable")
	}
	opened := &Client{
		config:    c,
		base:      loaded.Server,
		namespace: cmp.Or(c.Namespace, loaded.Namespace, defaultNamespace),
		from:      origin{source: loaded.source, credentials: loaded.credentials()},
	}
	opened.http.Store(&http.Client{Transport: round})
	return opened, nil
}

// renew reads all files again. It changes nothing if the files cannot be read, or if they
// now name another server.
func (c *Client) renew() {
	fresh, err := Open(c.config)
	if err != nil || fresh.Server() != c.Server() {
		return
	}
	c.hangUp()
	c.http.Store(fresh.http.Load())
}

// hangUp closes the idle connections. (http.Client's own method does not reach
// through the wrappers of package rest.)
func (c *Client) hangUp() { utilnet.CloseIdleConnectionsFor(c.http.Load().Transport) }

// origin is the source of a client's settings, for errors.
type origin struct {
	source      string // where the server and the CA come from
	credentials string // the kind of credentials, and its file
}

// Namespace returns the namespace in the Config. If the Config has none, it returns the
// namespace of the kubeconfig's current context or of the service account. If there is none
// either, it returns "kube-system", as in whereabouts.
func (c *Client) Namespace() string { return c.namespace }

// Server returns the server's URL, for example https://10.96.0.1:443.
func (c *Client) Server() string { return c.base.String() }

// Access is a server, and the way to it.
type Access struct {
	Server    *url.URL
	Transport *transport.Config
	Namespace string // of the kubeconfig's context or of the service account, "" if it has none
	Program   string // the program that provides the credentials, for errors

	source string // "kubeconfig /etc/…", for errors
}

func (c *Config) load() (*Access, error) {
	switch {
	case c.Load != nil:
		source := "kubeconfig " + c.Kubeconfig
		loaded, err := c.Load()
		if err != nil {
			return nil, failure.From(err, failure.InvalidConfig, "%s", source).Cure("correct the file, or name another file with --kubeconfig or $KUBECONFIG")
		}
		loaded.source = source
		return loaded, nil
	case c.Kubeconfig == "":
		return loadServiceAccount(c.ServiceAccount)
	}
	return c.loadKubeconfig()
}

func (c *Config) loadKubeconfig() (*Access, error) {
	path, vet := c.Kubeconfig, c.Vet
	bad := func(err error, cure, format string, args ...any) error {
		return failure.From(err, failure.InvalidConfig, "kubeconfig "+path+format, args...).Cure("%s", cure)
	}
	file, err := readKubeconfig(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad(err, "check the path in kubernetes.kubeconfig; whereabouts' installer writes the file on each node", "")
	}
	if err != nil {
		return nil, bad(err, "make the file a readable YAML or JSON file of the kind Config", "")
	}
	if file.CurrentContext == "" {
		return nil, bad(errors.New("no current-context"), "set current-context to one of the contexts in the file", "")
	}
	context, cluster, user, err := file.current()
	if err != nil {
		return nil, bad(err, "", "")
	}
	if cluster.Server == "" {
		return nil, bad(errors.New("no server"), "set server to a URL like https://10.96.0.1:443", ": cluster %q", context.Cluster)
	}
	if key := user.provider(); key != "" {
		return nil, bad(fmt.Errorf("%q names a program for the credentials, and plugins and rail-agent run no such program", key),
			"use a token, tokenFile or client certificate in the kubeconfig; rail-agent run --cni-conf writes such a kubeconfig", ": user %q", context.User)
	}
	if err := resolve(path, cluster, user); err != nil {
		return nil, bad(err, "", "")
	}
	if vet != nil {
		if err := vet(named(user, cluster)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(cluster.check(), user.check()); err != nil {
		return nil, bad(err, "", "")
	}
	base, err := serverURL(cluster.Server)
	if err != nil {
		return nil, bad(err, "set server to a URL like https://10.96.0.1:443", ": server %q", cluster.Server)
	}
	t, err := access(base, cluster, user)
	if err != nil {
		return nil, bad(err, "", "")
	}
	return &Access{Server: base, Transport: t, Namespace: context.Namespace, source: "kubeconfig " + path}, nil
}

// named returns the files that the user and the cluster name.
func named(user *authInfo, cluster *clusterInfo) []string {
	files := []string{user.TokenFile, user.CertFile, user.KeyFile, cluster.CAFile}
	return slices.DeleteFunc(files, func(name string) bool { return name == "" })
}

// loadServiceAccount returns the access of a pod's service account. The kubelet gives each
// container three files, and the server's address in the environment. Source: Kubernetes,
// "Accessing the Kubernetes API from a Pod".
func loadServiceAccount(dir string) (*Access, error) {
	const cure = "outside of a pod with a service account, give a kubeconfig"
	source := "service account " + dir
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, failure.New(failure.InvalidConfig, "%s: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set", source).Cure(cure)
	}
	base, err := url.Parse("https://" + net.JoinHostPort(host, port))
	if err != nil {
		return nil, failure.From(err, failure.InvalidConfig, "%s: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT", source).Cure(cure)
	}
	t := &transport.Config{BearerTokenFile: filepath.Join(dir, "token")}
	t.TLS.CAFile = filepath.Join(dir, "ca.crt")
	for _, file := range []string{t.BearerTokenFile, t.TLS.CAFile} {
		if _, err := os.Stat(file); err != nil {
			return nil, failure.From(err, failure.InvalidConfig, "%s", source).Cure(cure)
		}
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failure.From(err, failure.InvalidConfig, "%s", source).Cure(cure)
	}
	return &Access{Server: base, Transport: t, Namespace: strings.TrimSpace(string(namespace)), source: source}, nil
}

// credentials returns a text that names the credentials. It is for the error if the server
// refuses the credentials with 401.
func (l *Access) credentials() string {
	switch t := l.Transport; {
	case t.BearerTokenFile != "":
		return "the token in " + t.BearerTokenFile
	case t.BearerToken != "":
		return "the token in " + l.source
	case l.Program != "":
		return fmt.Sprintf("the credentials from the program %s in %s", l.Program, l.source)
	case t.TLS.CertFile != "":
		return "the client certificate " + t.TLS.CertFile
	case len(t.TLS.CertData) > 0:
		return "the client certificate in " + l.source
	case t.Username != "":
		return fmt.Sprintf("the user %q and the password in %s", t.Username, l.source)
	}
	return "a request without credentials, because there are none in " + l.source
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
