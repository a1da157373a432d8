package credential

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const (
	// asks is the longest time between two questions to the server about a kubeconfig of
	// another installer that does not change.
	asks = 5 * time.Minute
	// surely is how long the server must refuse such a kubeconfig. A server that has lost its
	// storage refuses tokens that are good, but not for the 10 s that it remembers those that
	// it has accepted. After that the agent's own token shows whether all are refused.
	surely = 15 * time.Second
)

// used is the kubeconfig by which the plugins reach the server, and what the server said of it.
type used struct {
	path  string
	owned bool
	sum   [sha256.Size]byte // of the content that the server was asked about

	client *kube.Client
	next   time.Time // time of the next question
	doubt  time.Time // of the first refusal in a row, zero if there is none
	err    error     // of the last check
}

// Use is the agent's knowledge about the plugins' kubeconfig.
type Use struct {
	Path     string // "" before the first check
	Owned    bool   // the agent wrote it, and renews its token
	Accepted bool   // by the server's last answer
	Refused  error  // why no plugin reaches the server by it
	Unasked  error  // why nobody knows
}

// Use returns what the agent knows of the kubeconfig by which the plugins reach the server.
func (k *Keeper) Use() Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.use
}

func (k *Keeper) setUse(of func(*Use)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of(&k.use)
}

// errDoubt is the error of a first refusal of another installer's kubeconfig.
var errDoubt = errors.New("the server refuses the kubeconfig of the plugin: it is asked again before anything is done")

// refusedError is the error of a kubeconfig that the server refuses, and that stays.
type refusedError struct{ path, stays string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the API server refuses the credentials in %s, by which the plugin whereabouts reaches it: new pods with its addresses do not start. "+
		"The file is another installer's, and stays, because %s. Renew it, or remove it: rail-agent then writes its own", e.path, e.stays)
}

// usedPath returns the path of the kubeconfig that the flat file names, and whether this agent
// wrote that kubeconfig.
func (k *Keeper) usedPath() (path string, ours bool) {
	path = k.path(kubeconfigName)
	if k.outcomes[k.path(flatFileName)] == install.Yielded {
		var flat struct {
			Kubernetes struct {
				Kubeconfig string `json:"kubeconfig"`
			} `json:"kubernetes"`
		}
		text, err := os.ReadFile(k.path(flatFileName))
		if err == nil && json.Unmarshal(text, &flat) == nil && filepath.IsAbs(flat.Kubernetes.Kubeconfig) {
			path = filepath.Clean(flat.Kubernetes.Kubeconfig)
		}
	}
	switch k.outcomes[path] {
	case install.Same, install.Installed, install.Replaced:
		return path, true
	}
	return path, false
}

// changed reports whether the kubeconfig that the plugins use is another than at the last check.
func (k *Keeper) changed() bool {
	path, _ := k.usedPath()
	text, err := os.ReadFile(path)
	return path != k.used.path || sha256.Sum256(text) != k.used.sum || errors.Is(err, fs.ErrNotExist)
}

// check asks the server, if that is due, whether it accepts the kubeconfig that the plugins use.
// If the server refuses that of another installer for good, check replaces it.
func (k *Keeper) check(ctx context.Context, ca []byte) error {
	err := k.ask(ctx)
	if !errors.Is(err, errTake) {
		return err
	}
	path := k.used.path
	k.taking = true
	err = k.write(ctx, ca)
	k.taking = false
	if _, ours := k.usedPath(); err != nil || !ours {
		return err
	}
	k.reporter.Report(component.Notice{Reason: "KubeconfigReplaced", Summary: "another installer's kubeconfig was replaced", Message: fmt.Sprintf(
		"the API server refused the credentials in %s, by which the plugin whereabouts reaches it. rail-agent has backed that file up, and replaced it by one with a token that it renews", path)})
	return k.ask(ctx)
}

// errTake is the error of a refused kubeconfig that the agent replaces.
var errTake = errors.New("the server refuses the kubeconfig of the plugin")

// ask asks the server about the kubeconfig that the plugins use: that of this agent at each check,
// that of another installer when it is new or changed, and now and then.
func (k *Keeper) ask(ctx context.Context) error {
	path, ours := k.usedPath()
	if !ours && k.outcomes[k.path(kubeconfigName)] == "" {
		return nil // the node is being uninstalled
	}
	text, err := os.ReadFile(path)
	u := &k.used
	if sum := sha256.Sum256(text); path != u.path || sum != u.sum || ours != u.owned {
		*u = used{path: path, owned: ours, sum: sum}
		k.setUse(func(use *Use) {
			fresh := Use{Path: path, Owned: ours}
			if ours { // one new token after another may be refused
				fresh.Refused = use.Refused
			}
			*use = fresh
		})
	}
	if !ours && time.Now().Before(u.next) {
		return u.err
	}
	if u.client == nil && err == nil {
		// A server that does not answer proves nothing about the token.
		u.client, err = kube.Open(kube.Config{Kubeconfig: path, UserAgent: k.UserAgent, RetryFor: time.Millisecond})
	}
	known := false
	if err == nil {
		known, err = u.client.Known(ctx)
	}
	u.next = time.Now().Add(asks - rand.N(asks/4))
	switch {
	case err != nil:
		k.setUse(func(use *Use) { use.Accepted, use.Unasked = false, err })
		if u.doubt = (time.Time{}); errors.Is(u.err, errDoubt) {
			u.err = nil // the refusals are not in a row
		}
		return u.err
	case known:
		u.doubt, u.err = time.Time{}, nil
		k.setUse(func(use *Use) { use.Accepted, use.Refused, use.Unasked = true, nil, nil })
		return nil
	case ours:
		k.setUse(func(use *Use) { use.Accepted, use.Unasked = false, nil })
		k.fresh = time.Time{}
		return errRejected
	}
	u.err = k.refused(ctx)
	if errors.Is(u.err, errDoubt) {
		u.next = time.Now()
	}
	return u.err
}

// refused returns what follows from a refusal of another installer's kubeconfig: errDoubt, errTake,
// or a refusedError.
func (k *Keeper) refused(ctx context.Context) error {
	u := &k.used
	if u.doubt.IsZero() {
		u.doubt = time.Now()
	}
	if time.Since(u.doubt) < k.surely {
		return errDoubt
	}
	if known, err := k.Client.Known(ctx); err != nil || !known {
		return errDoubt // it refuses everybody, or nobody knows
	}
	if stays := k.stays(); stays != "" {
		err := &refusedError{u.path, stays}
		k.setUse(func(use *Use) { use.Accepted, use.Refused, use.Unasked = false, err, nil })
		return err
	}
	return errTake
}

// stays returns why a refused kubeconfig is not replaced, "" if it is. A kubeconfig that leads to
// other pools than ours must stay: a plugin that found other pools would assign addresses that
// pods have.
func (k *Keeper) stays() string {
	u := &k.used
	namespace := cmp.Or(k.PoolNamespace, k.Namespace)
	switch server := endpoint(u.client.Server()); {
	case u.path != k.path(kubeconfigName):
		return "rail-agent writes " + k.path(kubeconfigName)
	case u.client.Namespace() != namespace:
		return fmt.Sprintf("its pools are in the namespace %q, and rail-agent's in %q", u.client.Namespace(), namespace)
	case server != endpoint(k.Client.Server()) && server != endpoint(k.Server):
		return fmt.Sprintf("its server is %s, and rail-agent's is %s", u.client.Server(), cmp.Or(k.Server, k.Client.Server()))
	case u.client.Indirect():
		return "it names a proxy, or another name of the server"
	}
	return ""
}

// endpoint returns the host and port of a URL, with the path.
func endpoint(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return server
	}
	port := cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port) + strings.TrimSuffix(u.Path, "/")
}
