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
	// asks is the longest time between two questions to the server about a kubeconfig of another
	// installer, if the kubeconfig does not change.
	asks = 5 * time.Minute
	// surely is how long the server must refuse such a kubeconfig before the agent believes the
	// refusal. A server that has lost its storage also refuses good tokens. Tokens that it has
	// already accepted it remembers for 10 s. After that, the agent's own token shows whether the
	// server refuses all tokens.
	surely = 15 * time.Second
)

// used is the kubeconfig with which the plugins reach the server, and what the server has answered
// about it.
type used struct {
	path  string
	owned bool
	sum   [sha256.Size]byte // the checksum of the content about which the server was asked

	client *kube.Client
	next   time.Time // time of the next question
	doubt  time.Time // the time of the first of consecutive refusals, zero if there is none
	err    error     // the error of the last check
}

// Use is the agent's knowledge about the plugins' kubeconfig.
type Use struct {
	Path     string // "" before the first check
	Owned    bool   // true if the agent wrote the kubeconfig and renews its token
	Accepted bool   // true if the server accepted it when it was last asked
	Refused  error  // the reason why the server does not accept it
	Unasked  error  // the reason why it is not known whether the server accepts it
}

// Use returns what the agent knows about the kubeconfig with which the plugins reach the server.
func (k *Keeper) Use() Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.use
}

func (k *Keeper) setUse(set func(*Use)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set(&k.use)
}

// errDoubt is the error if another installer's kubeconfig was refused, but not for long enough to
// be certain.
var errDoubt = errors.New("the server refuses the kubeconfig of the plugin; rail-agent asks the server again before it acts")

// refusedError is the error for a kubeconfig that the server refuses and that is not replaced.
type refusedError struct{ path, stays string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the API server refuses the credentials in %s, which the plugin whereabouts uses: new pods with addresses from whereabouts do not start. "+
		"Another installer wrote the file, and rail-agent does not replace it because %s. Renew the file, or remove it so that rail-agent writes its own", e.path, e.stays)
}

// usedPath returns the path of the kubeconfig that the flat file names, and whether this agent
// wrote that kubeconfig.
func (k *Keeper) usedPath() (path string, owned bool) {
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

// changed reports whether the plugins use another kubeconfig than at the last check.
func (k *Keeper) changed() bool {
	path, _ := k.usedPath()
	text, err := os.ReadFile(path)
	return path != k.used.path || sha256.Sum256(text) != k.used.sum || errors.Is(err, fs.ErrNotExist)
}

// check asks the server, if that is due, whether it accepts the kubeconfig that the plugins use. If
// it is certain that the server refuses another installer's kubeconfig, check replaces that
// kubeconfig.
func (k *Keeper) check(ctx context.Context, ca []byte) error {
	err := k.ask(ctx)
	if !errors.Is(err, errTake) {
		return err
	}
	path := k.used.path
	k.taking = true
	err = k.write(ctx, ca)
	k.taking = false
	if _, owned := k.usedPath(); err != nil || !owned {
		return err
	}
	k.reporter.Report(component.Notice{Reason: "KubeconfigReplaced", Summary: "another installer's kubeconfig was replaced", Message: fmt.Sprintf(
		"the API server refused the credentials in %s, by which the plugin whereabouts reaches it. rail-agent has backed that file up, and replaced it by one with a token that it renews", path)})
	return k.ask(ctx)
}

// errTake is the error for a refused kubeconfig that the agent will replace.
var errTake = errors.New("the server refuses the kubeconfig of the plugin")

// ask asks the server about the kubeconfig that the plugins use. It asks about this agent's own
// kubeconfig at each check. It asks about another installer's kubeconfig if the kubeconfig is new
// or has changed, and otherwise from time to time.
func (k *Keeper) ask(ctx context.Context) error {
	path, owned := k.usedPath()
	if !owned && k.outcomes[k.path(kubeconfigName)] == "" {
		return nil // the node is being uninstalled
	}
	text, err := os.ReadFile(path)
	u := &k.used
	if sum := sha256.Sum256(text); path != u.path || sum != u.sum || owned != u.owned {
		*u = used{path: path, owned: owned, sum: sum}
		k.setUse(func(use *Use) {
			fresh := Use{Path: path, Owned: owned}
			if owned { // each new token may be refused as well
				fresh.Refused = use.Refused
			}
			*use = fresh
		})
	}
	if !owned && time.Now().Before(u.next) {
		return u.err
	}
	if u.client == nil && err == nil {
		// If the server does not answer, this proves nothing about the token.
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
			u.err = nil // the refusals are not consecutive
		}
		return u.err
	case known:
		u.doubt, u.err = time.Time{}, nil
		k.setUse(func(use *Use) { use.Accepted, use.Refused, use.Unasked = true, nil, nil })
		return nil
	case owned:
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

// refused returns the error that follows from a refusal of another installer's kubeconfig:
// errDoubt, errTake, or a refusedError.
func (k *Keeper) refused(ctx context.Context) error {
	u := &k.used
	if u.doubt.IsZero() {
		u.doubt = time.Now()
	}
	if time.Since(u.doubt) < k.surely {
		return errDoubt
	}
	if known, err := k.Client.Known(ctx); err != nil || !known {
		return errDoubt // the server refuses everybody, or this is not known
	}
	if stays := k.stays(); stays != "" {
		err := &refusedError{u.path, stays}
		k.setUse(func(use *Use) { use.Accepted, use.Refused, use.Unasked = false, err, nil })
		return err
	}
	return errTake
}

// stays returns the reason why a refused kubeconfig must not be replaced. It returns "" if it may
// be replaced. A kubeconfig that leads to other pools than rail-agent's must not be replaced,
// because a plugin with other pools would assign addresses that pods already have.
func (k *Keeper) stays() string {
	u := &k.used
	namespace := cmp.Or(k.PoolNamespace, k.Namespace)
	switch server := endpoint(u.client.Server()); {
	case u.path != k.path(kubeconfigName):
		return "rail-agent writes " + k.path(kubeconfigName)
	case u.client.Namespace() != namespace:
		return fmt.Sprintf("its pools are in the namespace %q, but rail-agent's pools are in %q", u.client.Namespace(), namespace)
	case server != endpoint(k.Client.Server()) && server != endpoint(k.Server):
		return fmt.Sprintf("its server is %s, but rail-agent's server is %s", u.client.Server(), cmp.Or(k.Server, k.Client.Server()))
	case u.client.Indirect():
		return "it names a proxy, or another name of the server"
	}
	return ""
}

// endpoint returns the scheme, host, port and path of a URL in a form that can be compared.
func endpoint(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return server
	}
	port := cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port) + strings.TrimSuffix(u.Path, "/")
}
