package credential

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	checkInterval = time.Minute // the time between two checks of the files and the token
	checkTimeout  = 10 * time.Second
	// maxPause is the longest pause after a check that failed. It is short because a node without
	// its first token cannot serve ADDs.
	maxPause = 30 * time.Second
)

// ShortestLifetime is the shortest lifetime that a TokenRequest may ask for (Kubernetes API
// reference, TokenRequestSpec).
const ShortestLifetime = 10 * time.Minute

// Options are the options of a [Keeper].
type Options struct {
	Client  *kube.Client // must have the right to request tokens of the account
	ConfDir string       // the runtime's configuration directory
	Node    string       // the node's name

	Account   string        // the name of the plugin's service account
	Namespace string        // the namespace of the service account
	Lifetime  time.Duration // the lifetime of a token; the token is renewed after half of it

	Server        string // the URL of the API server for the plugin; "" for the URL of Client
	PoolNamespace string // the namespace of the address pools; "" for the namespace of the account
	Replace       bool   // also replace files of another installer

	// Put installs a file, and backs up a file of another installer.
	Put       func(context.Context, install.File) (install.Outcome, error)
	Dirs      *notify.Dirs           // the process's watcher of directories, which reports changes of the files
	Notify    func(component.Notice) // called with each notice; may be nil
	UserAgent string
	Log       *slog.Logger
}

// Keeper maintains the files that the plugin whereabouts needs to reach the API server: the
// kubeconfig with a token, the flat file that names the kubeconfig, and the file with the node's
// name, which is needed for node slices.
type Keeper struct {
	Options
	reporter *component.Reporter
	outcomes map[string]install.Outcome

	token   string
	fresh   time.Time // time of the next renewal, by both clocks of this host
	unbound bool      // the token is not bound to this node's object

	used   used
	taking bool          // true while another installer's kubeconfig is being replaced
	surely time.Duration // the constant surely, but shorter in tests

	mu      sync.Mutex
	err     error     // the error of the last try; errNotYet before the first try
	written bool      // true after the files were written for the first time
	ends    time.Time // when the token expires
	use     Use
}

var (
	errNotYet   = errors.New("the plugin's kubeconfig is not written yet")
	errRejected = errors.New("the server no longer knows the plugin's token: the Node or the service account was recreated")
)

// New returns a keeper. The keeper does nothing until [Keeper.Run] runs.
func New(o Options) *Keeper {
	k := &Keeper{Options: o, outcomes: map[string]install.Outcome{}, surely: surely, err: errNotYet}
	k.reporter = component.NewReporter("credential", o.Log, func(n component.Notice) {
		if k.Notify != nil {
			k.Notify(n)
		}
	})
	return k
}

// Run maintains the files until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	wake := component.NewTrigger()
	files := k.Dirs.Subscribe(wake.Fire)
	defer files.Close()
	failed := 0 // the number of consecutive checks that failed
	var last error
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		err := k.sync(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if failed++; err == nil {
			failed = 0
		}
		pause := k.pause(err, last, failed)
		if errors.Is(err, errRejected) && errors.Is(last, errRejected) {
			k.setUse(func(use *Use) { use.Refused = err })
		}
		if k.set(err) {
			k.report(err, last)
		}
		last = err
		files.Watch(filepath.Join(k.ConfDir, Dir))
		k.wait(ctx, pause, wake)
	}
}

// report logs and reports the outcome of a check. It is called only if the outcome differs from the
// outcome of the last check.
func (k *Keeper) report(err, last error) {
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		k.reporter.Report(component.Notice{Reason: "KubeconfigRefused", Summary: "API server refuses the plugin's kubeconfig", Message: err.Error(), Warning: true})
	case err != nil:
		k.Log.Warn("cannot update the plugin's kubeconfig", "err", err)
	case errors.As(last, &refused):
		k.reporter.Report(component.Notice{Reason: "KubeconfigAccepted", Summary: "API server accepts the plugin's kubeconfig again", Message: "the API server accepts " + k.used.path + " again"})
	case k.used.owned:
		k.Log.Info("plugin's kubeconfig is up to date", "path", k.used.path, "renewAt", k.fresh.Format(time.RFC3339))
	default:
		k.Log.Info("plugin uses another installer's kubeconfig", "path", k.used.path, "accepted", k.Use().Accepted)
	}
}

// wait waits for the pause. If the plugins use another kubeconfig than at the last check, it
// returns earlier, but not before a second has passed, because the writer of the kubeconfig may not
// be finished.
func (k *Keeper) wait(ctx context.Context, pause time.Duration, wake *component.Trigger) {
	early := min(pause, time.Second)
	until := time.Now().Add(pause)
	if wait.For(ctx, early) != nil {
		return
	}
	for wake.Wait(ctx, time.Until(until)) {
		if k.changed() {
			return
		}
	}
}

// pause returns how long to wait after a check that ended with err. last is the error of
// the check before it, and failed is the number of checks in a row that failed. After a
// failure the pause is random, because all nodes of a cluster fail at the same time.
func (k *Keeper) pause(err, last error, failed int) time.Duration {
	var refused *refusedError
	switch {
	case errors.Is(err, errRejected) && errors.Is(last, errRejected), errors.As(err, &refused):
		// The new token is refused as well. A normal pause is used here, because otherwise every
		// node would request new tokens again and again while this lasts.
		return checkInterval - rand.N(checkInterval/4)
	case errors.Is(err, errDoubt):
		return k.surely + rand.N(k.surely/2)
	case err != nil:
		pause := min(time.Second<<min(max(failed-1, 0), 10), maxPause)
		return pause - rand.N(pause/2)
	}
	return min(checkInterval, max(time.Until(k.fresh), time.Second))
}

func (k *Keeper) set(err error) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed = k.err == nil && err != nil || k.err != nil && (err == nil || k.err.Error() != err.Error())
	k.err, k.written = err, k.written || err == nil
	return changed
}

// Ready returns the reason why the plugin cannot reach the server. It returns nil if the plugin
// can. It looks at the kubeconfig that the plugins use, even if this is another installer's
// kubeconfig. A token that could not be renewed is good until it expires or the server refuses it.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.use.Refused != nil {
		return k.use.Refused
	}
	if k.written && time.Now().Before(k.ends) {
		return nil
	}
	return k.err
}
