package agent

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// slow is the time between full checks without a notification: one may be lost,
// and not all changes have one.
const slow = 30 * time.Second

// Notice is a message to a person about the node.
type Notice struct {
	Reason  string // one word in CamelCase
	Summary string // the log's message: a constant phrase
	Message string // what happened to which object, for a person
	Warning bool   // something is wrong; else it is right again
}

// Teller passes notices on. Tell must not block.
type Teller interface{ Tell(n Notice) }

// Journal holds the addresses that DELs could not free.
type Journal interface {
	// Waiting returns the number of waiting addresses. It must be cheap.
	Waiting() (int, error)
	// Replay frees all addresses that can be freed now.
	Replay(ctx context.Context) error
}

// Options configures an agent.
type Options struct {
	StateDirs []string // of the plugins, at least one
	// List is what the plugins are told of the state directories, see [KeptStateDirs].
	List     netconf.StateDirs
	NodeName string
	NodeIP   netip.Addr // by which the cluster reaches the node; zero if not known
	Version  string

	// BinDirs are the CNI directories in which the Plugins in Own must be
	// installed, with the Prefix before their names. With Restore the agent
	// restores a plugin that differs, otherwise it only reports it. If there is
	// a Record only its paths count.
	BinDirs []string
	Own     string
	Plugins []string
	Prefix  string
	Restore bool
	Record  *install.Node // may be nil

	// Ready returns an error while something else keeps the agent from being
	// ready. It may be nil.
	Ready func() error
	// Leaving: the plugins are being removed in any case, so an unreadable
	// record no longer makes the agent unready.
	Leaving bool
	// Uninstalling: readiness reports the end of the uninstallation, and does
	// not depend on the metrics.
	Uninstalling bool

	Metrics string // address to serve metrics and health at, "" for none
	// MetricsTLS encrypts the metrics, and MetricsGuard decides who may read
	// them. nil means no encryption, or no restriction.
	MetricsTLS   *tls.Config
	MetricsGuard func(http.Handler) http.Handler
	Socket       string // path of the socket for railctl, "" for none

	Teller  Teller               // nil = none
	Journal Journal              // nil = none
	Devices func() DeviceMetrics // nil = no device plugin
	// Kubeconfig returns what is known of the kubeconfig by which the plugin whereabouts
	// reaches the API server; nil if the agent does not maintain it.
	Kubeconfig func() Kubeconfig
	// Published returns the metrics of the publisher; nil if there is none.
	Published func() PublishMetrics
	NRI       func() NRIMetrics // nil = no NRI plugin
	// Doctor returns the metrics of the doctor's rules; nil if they are not judged.
	Doctor func() DoctorMetrics
	// Pools returns the metrics of the cluster's address pools; nil if the process never
	// reconciles them.
	Pools func() PoolMetrics
	// Running is called when the agent runs, with a function that returns its status until it
	// ends; nil = nobody asks.
	Running func(status func() Status)
	// Facts returns the facts of the node as JSON, for the socket; nil = not served.
	Facts func(context.Context) ([]byte, error)
	Log   *slog.Logger
}

// agent is a running agent.
type agent struct {
	Options
	host         *link.Netns // for subscriptions; only for pkg/notify
	keepers      []*keeper
	binaries     *binaries
	journal      journalState
	metricsState metricsState
	stats        stats
	scrapes      turns
	readings     turns // of facts
	began        time.Time
}

// Run keeps the node until ctx ends. It returns an error at once if it cannot
// start. The calling thread must be in the host netns.
func Run(ctx context.Context, o Options) error {
	a := &agent{Options: o, began: time.Now(), scrapes: newTurns(), readings: newTurns()}
	err := checkMetrics(o.Metrics)
	if err != nil {
		return err
	}
	if a.host, err = link.CurrentNetns(); err != nil {
		return err
	}
	defer a.host.Close()
	for _, dir := range o.StateDirs {
		k, err := newKeeper(a, dir)
		if err != nil {
			return err
		}
		defer k.node.Close()
		a.keepers = append(a.keepers, k)
	}
	if a.binaries, err = newBinaries(a); err != nil {
		return err
	}
	socket, err := a.private()
	if err != nil {
		return err
	}
	for _, k := range a.keepers { // not those of another agent that has the socket
		k.keepFiles()
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the other defers
	a.keep(ctx, &all)
	if first, err := link.OpenNetns(link.InitNetns); err == nil {
		defer first.Close()
		if !first.ID.Equal(a.host.ID) { // the kernel moves NICs there
			all.Go(func() { notify.Netlink(ctx, first, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, a.Log, a.wake) })
		}
	}
	if a.Metrics != "" {
		a.metricsState.err = errNotListening
		all.Go(func() { a.serveMetrics(ctx, a.answers(a.MetricsGuard)) })
	}
	failed := make(chan error, 1)
	if socket != nil {
		all.Go(func() { failed <- socket.serve(ctx) })
	}
	if o.Running != nil {
		o.Running(a.status)
	}
	a.Log.Info("agent started", "node", o.NodeName, "stateDirs", o.StateDirs, "version", o.Version)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

// keep starts the goroutines of all that watch the kernel and keep the node, until ctx ends.
func (a *agent) keep(ctx context.Context, all *sync.WaitGroup) {
	all.Go(func() { notify.Netlink(ctx, a.host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, a.Log, a.wake) })
	all.Go(func() { notify.Netlink(ctx, a.host, unix.NETLINK_RDMA, rdma.NotifyGroup, a.Log, a.rdmaChanged) })
	for _, k := range a.keepers {
		all.Go(func() { k.run(ctx) })
		all.Go(func() { newAnnouncer(k).run(ctx) })
		all.Go(func() { newRemaker(k).run(ctx) })
		all.Go(func() { newNICWatch(k).run(ctx) })
		all.Go(func() { newReturnWatch(k).run(ctx) })
	}
	all.Go(func() { a.binaries.run(ctx) })
	all.Go(func() { a.replay(ctx) })
}

// wake makes every keeper check its attachments.
func (a *agent) wake() {
	for _, k := range a.keepers {
		nudge(k.nudged)
		nudge(k.linksChanged)
		nudge(k.returns)
	}
}

// rdmaChanged wakes the keepers after a change of RDMA devices, also to look for
// devices that were re-created.
func (a *agent) rdmaChanged() {
	a.wake()
	for _, k := range a.keepers {
		nudge(k.rdmaChanged)
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a check is due already
	}
}

// Write logs the notice, with more attributes in args, as slog.Logger.Log takes
// them.
func (n Notice) Write(log *slog.Logger, args ...any) {
	level := slog.LevelInfo
	if n.Warning {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, n.Summary, append([]any{"reason", n.Reason, "message", n.Message}, args...)...)
}

// tell logs a notice and passes it on.
func (a *agent) tell(log *slog.Logger, n Notice, args ...any) {
	n.Write(log, args...)
	if a.Teller != nil {
		a.Teller.Tell(n)
	}
}

// journalState is the last known state of the journal.
type journalState struct {
	mu      sync.Mutex
	waiting int
	err     error
}

func (j *journalState) set(waiting int, err error) (changed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	changed = essence(j.err) != essence(err) || (j.waiting == 0) != (waiting == 0)
	j.waiting, j.err = waiting, err
	return changed
}

func (j *journalState) get() (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.waiting, j.err
}

// replayTime bounds one replay: the client retries an unreachable server for
// long.
const replayTime = 2 * time.Minute

// replay replays the journal while it has entries.
func (a *agent) replay(ctx context.Context) {
	for ; a.Journal != nil && ctx.Err() == nil; _ = wait.For(ctx, slow) {
		waiting, err := a.Journal.Waiting()
		if err == nil && waiting > 0 {
			bounded, cancel := context.WithTimeout(ctx, replayTime)
			err = a.Journal.Replay(bounded)
			cancel()
			if left, again := a.Journal.Waiting(); again == nil {
				waiting = left
			}
		}
		if !a.journal.set(waiting, err) || ctx.Err() != nil {
			continue
		}
		switch {
		case err != nil:
			a.tell(a.Log, Notice{"AddressesNotFreed", "addresses not freed", "addresses of pods that ended wait to be freed: " + err.Error(), true}, "waiting", waiting)
		case waiting == 0:
			a.tell(a.Log, Notice{"AddressesFreed", "addresses freed", "no address waits to be freed any more", false})
		}
	}
}
