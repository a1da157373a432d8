package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// What whereabouts' own installer writes below the runtime's configuration
// directory (whereabouts v0.9.4, script/lib.sh), and under the same names.
const (
	whereaboutsDir  = "whereabouts.d"
	kubeconfigName  = "whereabouts.kubeconfig"
	flatFileName    = "whereabouts.conf"
	nodeNameName    = "nodename"
	secret          = fs.FileMode(0o600)
	readable        = fs.FileMode(0o644)
	credentialLooks = time.Minute // between looks whether all is as it should be
	lookTime        = 10 * time.Second
)

// credentialFlags are those of "run" that are about it.
type credentialFlags struct {
	confDir, account, server, namespace string
	replace                             bool
	lifetime                            time.Duration
}

func (f *credentialFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.confDir, "cni-conf", "", "the runtime's configuration directory: have the kubeconfig and the flat file of whereabouts below it; none when empty")
	flags.StringVar(&f.account, "plugin-account", "rail-cni-whereabouts", "service account, in the agent's namespace, whose token the plugin whereabouts gets")
	flags.DurationVar(&f.lifetime, "token-lifetime", 24*time.Hour, "life of that token, which is renewed when half of it is over")
	flags.StringVar(&f.server, "api-server", "", "the API server's URL for the plugin; the agent's own when empty")
	flags.StringVar(&f.namespace, "pool-namespace", "", "namespace of the address pools; the agent's own when empty")
	flags.BoolVar(&f.replace, "replace-whereabouts-files", false, "also where whereabouts' own installer has put its files; else these stay, and are used")
}

// credential keeps what the plugin whereabouts finds the API server by, on the
// node: the kubeconfig with a token, the flat file that names it, and the node's
// name for node slices.
type credential struct {
	credentialFlags
	client    *kube.Client
	namespace string // of the account
	node      string
	put       func(install.File) (install.Outcome, error)
	log       *slog.Logger
	outcomes  map[string]install.Outcome

	token   string
	fresh   time.Time    // when it is to be renewed, by both clocks of this host
	unbound bool         // the token is not bound to this node's object
	plugin  *kube.Client // uses our kubeconfig with this token, nil until the first look

	mu      sync.Mutex
	err     error     // of the last try; errNotYet before
	written bool      // once
	ends    time.Time // of the token
}

var errNotYet = errors.New("the plugin's kubeconfig is not written yet")

func (c *credential) dir() string { return filepath.Join(c.confDir, whereaboutsDir) }

// run keeps the files until ctx ends.
func (c *credential) run(ctx context.Context) {
	var last error
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, lookTime)
		err := c.look(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := c.pause(err, last)
		last = err
		if c.set(err) {
			switch {
			case err != nil:
				c.log.Warn("the plugin's kubeconfig is not as it should be", "err", err)
			default:
				c.log.Info("the plugin's kubeconfig is as it should be", "renewAt", c.fresh.Format(time.RFC3339))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// pause returns how long to wait after a look that ended with err, and the one
// before it with last.
func (c *credential) pause(err, last error) time.Duration {
	switch {
	case errors.Is(err, errRejected) && errors.Is(last, errRejected):
		// The new token is refused as well. Each node would ask for tokens each
		// second, for as long as that lasts.
		return credentialLooks
	case err != nil:
		return time.Second
	}
	return min(credentialLooks, max(time.Until(c.fresh), time.Second))
}

func (c *credential) set(err error) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.err == nil && err != nil || c.err != nil && (err == nil || c.err.Error() != err.Error())
	c.err, c.written = err, c.written || err == nil
	return changed
}

// ready says why the plugin has no way to the server. A token that could not be
// renewed is good until it ends.
func (c *credential) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written && time.Now().Before(c.ends) {
		return nil
	}
	return c.err
}

// look renews the token when that is due, and sees to it that the files are
// there, and that the server accepts the token.
func (c *credential) look(ctx context.Context) error {
	ca, err := c.client.CA()
	if err != nil {
		return err
	}
	if err := c.renew(ctx); err != nil {
		return err
	}
	if err := c.write(ca); err != nil {
		return err
	}
	if c.rejected(ctx) {
		c.fresh = time.Time{}
		return errRejected
	}
	return nil
}

var errRejected = errors.New("the server no longer knows the plugin's token: the Node or the service account was made anew")

// rejected reports whether the server refuses the token in our kubeconfig. A token
// ends early with its account and with its Node object, which may be made anew
// while pods and this agent go on running.
func (c *credential) rejected(ctx context.Context) bool {
	path := filepath.Join(c.dir(), kubeconfigName)
	if c.outcomes[path] == install.Yielded {
		return false
	}
	if c.plugin == nil {
		var err error
		// A server that does not answer means nothing for the token.
		if c.plugin, err = kube.Open(kube.Config{Kubeconfig: path, UserAgent: "rail-agent/" + version, RetryFor: time.Millisecond}); err != nil {
			return false
		}
	}
	known, err := c.plugin.Known(ctx)
	return err == nil && !known
}

// renew requests a new token when that is due.
func (c *credential) renew(ctx context.Context) error {
	// The monotonic clock stands still while the host is suspended, the other one
	// may be set.
	if asked := time.Now(); !asked.Before(c.fresh) || !asked.Round(0).Before(c.fresh.Round(0)) {
		token, err := c.client.Token(ctx, c.namespace, c.account, c.node, c.lifetime)
		if err != nil {
			return err
		}
		if unbound := token.Unbound != nil; unbound != c.unbound {
			c.unbound = unbound
			if unbound {
				c.log.Warn("token of the plugin is not bound to the Node", "node", c.node, "err", token.Unbound)
			}
		}
		life := token.Expires.Sub(asked)
		if life <= 0 || life > c.lifetime { // the server's clock is another
			life = c.lifetime
		}
		c.token, c.fresh, c.plugin = token.Value, asked.Add(life/2), nil
		c.mu.Lock()
		c.ends = asked.Add(life)
		c.mu.Unlock()
	}
	return nil
}

// write makes sure that the files are there.
func (c *credential) write(ca []byte) error {
	server := c.server
	if server == "" {
		server = c.client.Server()
	}
	kubeconfig, flat := filepath.Join(c.dir(), kubeconfigName), &bytes.Buffer{}
	enc := json.NewEncoder(flat)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]any{
		"datastore": "kubernetes", "configuration_path": c.dir(), "kubernetes": map[string]any{"kubeconfig": kubeconfig},
	}); err != nil {
		return err
	}
	for _, f := range []install.File{
		{Path: kubeconfig, Content: kubeconfigText(server, ca, c.token, c.poolNamespace()), Mode: secret},
		{Path: filepath.Join(c.dir(), nodeNameName), Content: []byte(c.node + "\n"), Mode: readable},
		{Path: filepath.Join(c.dir(), flatFileName), Content: flat.Bytes(), Mode: secret}, // last: it names the others
	} {
		f.Yield = !c.replace
		outcome, err := c.put(f)
		if err != nil {
			return err
		}
		if outcome != c.outcomes[f.Path] && outcome != install.Same && outcome != "" {
			c.log.Info("whereabouts' file", "path", f.Path, "outcome", outcome)
		}
		c.outcomes[f.Path] = outcome
	}
	return nil
}

func (c *credential) poolNamespace() string {
	if c.credentialFlags.namespace != "" {
		return c.credentialFlags.namespace
	}
	return c.namespace
}

// kubeconfigText has the names of clusters and users that whereabouts' installer
// gives, on which nothing depends.
func kubeconfigText(server string, ca []byte, token, namespace string) []byte {
	trust := ""
	if len(ca) > 0 {
		trust = "\n    certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
	}
	return fmt.Appendf(nil, `# Written by rail-agent, which renews the token.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: %q%s
users:
- name: whereabouts
  user:
    token: %q
contexts:
- name: whereabouts-context
  context:
    cluster: local
    user: whereabouts
    namespace: %q
current-context: whereabouts-context
`, server, trust, token, namespace)
}
