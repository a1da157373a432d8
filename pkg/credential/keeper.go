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
	checkInterval = time.Minute // between checks of the files and the token
	checkTimeout  = 10 * time.Second
	// maxPause bounds the pause after a check that fails. It is short because a node
	// without its first token cannot serve ADDs.
	maxPause = 30 * time.Second
)

// ShortestLifetime is the shortest that a TokenRequest may ask for (Kubernetes API
// reference, TokenRequestSpec).
const ShortestLifetime = 10 * time.Minute

// Options are those of a [Keeper].
type Options struct {
	Client  *kube.Client // may request tokens of the account
	ConfDir string       // the runtime's configuration directory
	Node    string       // the node's name

	Account   string        // service account of the plugin
	Namespace string        // of the account
	Lifetime  time.Duration // of a token; it is renewed at half of it

	Server        string // URL of the API server for the plugin; the Client's if it is ""
	PoolNamespace string // of the address pools; that of the account if it is ""
	Replace       bool   // also files of another installer

	// Put installs a file, and backs up another's.
	Put       func(context.Context, install.File) (install.Outcome, error)
	Dirs      *notify.Dirs           // the process's, which reports changes of the files
	Notify    func(component.Notice) // passes a notice on; nil = nobody
	UserAgent string
	Log       *slog.Logger
}

// Keeper maintains the files by which the plugin whereabouts reaches the API
// server: the kubeconfig with a token, the flat file that names it, and the
// node's name for node slices.
type Keeper struct {
	Options
	reporter *component.Reporter
	outcomes map[string]install.Outcome

	token   string
	fresh   time.Time // time of the next renewal, by both clocks of this host
	unbound bool      // the token is not bound to this node's object

	used   used
	taking bool          // another installer's kubeconfig is being replaced
	surely time.Duration // shorter in tests

	mu      sync.Mutex
	err     error     // the last try's; errNotYet before the first
	written bool      // the files were written once
	ends    time.Time // of the token
	use     Use
}

var (
	errNotYet   = errors.New("the plugin's kubeconfig is not written yet")
	errRejected = errors.New("the server no longer knows the plugin's token: the Node or the service account was recreated")
)

// New returns a keeper, which does nothing until [Keeper.Run] runs.
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
	failed := 0 // checks in a row that failed
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

// report logs the outcome of a check, which is another than that of the last one, and tells of it.
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

// wait waits for the pause. It ends early if the plugins use another kubeconfig than at the last
// check, but not before a second: its writer may not be done.
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
		// The new token is refused as well. Otherwise each node would request a
		// token again and again, for as long as that lasts.
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

// Ready returns the reason why the plugin cannot reach the server, or nil. It is about the
// kubeconfig that the plugins use, also if that is another installer's. A token that could not be
// renewed counts until it expires, or until the server refuses it.
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
