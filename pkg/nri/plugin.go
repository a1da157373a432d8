package nri

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Options configures a plugin.
type Options struct {
	// Socket is the path of the runtime's NRI socket as this process sees it. It need not
	// exist.
	Socket string
	// Lookup returns what the pod of a sandbox is told, nil if it holds no rail. It is
	// called by several goroutines.
	Lookup func(ctx context.Context, sandboxID string) (*publish.Told, error)
	// Root is the root of the host's files, where char devices and the pods' directories
	// are; "" for that of this process.
	Root string

	Tell func(agent.Notice) // passes notices on, and does not block; nil for none
	Log  *slog.Logger
}

const (
	// The pause between tries to connect doubles from firstRest to lastRest. A change in the
	// socket's directory ends it. It begins anew after a session of goodSession.
	firstRest   = 100 * time.Millisecond
	lastRest    = 30 * time.Second
	goodSession = 10 * time.Second
	// changeRest is the least time between tries.
	changeRest = 50 * time.Millisecond
)

// Plugin is an NRI plugin. Its methods may be called concurrently.
type Plugin struct {
	Options
	slots      chan struct{} // of lookups that have not ended
	lookupTime time.Duration // lookupTime, but for tests

	mu      sync.Mutex
	metrics agent.NRIMetrics
	told    map[string]string // the last notice of each reason
	absent  bool              // there is no socket, and the log says so
}

// New returns a plugin. It does nothing until [Plugin.Run] is called.
func New(o Options) *Plugin {
	return &Plugin{Options: o, slots: make(chan struct{}, maxLookups), lookupTime: lookupTime, told: map[string]string{}}
}

// Run keeps the plugin connected to the runtime until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	dirs := notify.NewDirs(p.Log)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		dirs.Run(ctx, func() {
			select {
			case changed <- struct{}{}:
			default: // a try is due already
			}
		})
	})
	for rest := firstRest; ctx.Err() == nil; rest = min(2*rest, lastRest) {
		dirs.Watch(filepath.Dir(p.Socket))
		began := time.Now()
		err := p.try(ctx)
		if ctx.Err() != nil {
			return
		}
		p.ended(err)
		if time.Since(began) > goodSession {
			rest = firstRest
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changed:
			_ = wait.For(ctx, changeRest)
		}
		timer.Stop()
	}
}

// try connects, and returns when the connection has ended.
func (p *Plugin) try(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = p.panicked(r)
		}
	}()
	return p.session(ctx)
}

// Metrics returns the values for the agent's metrics.
func (p *Plugin) Metrics() agent.NRIMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.metrics
}

// count changes the metrics.
func (p *Plugin) count(change func(*agent.NRIMetrics)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.metrics)
}

// panicked counts and reports a panic, and returns it as an error.
func (p *Plugin) panicked(r any) error {
	p.count(func(m *agent.NRIMetrics) { m.Panics++ })
	p.Log.Error("panic in the NRI plugin", "panic", r, "stack", string(debug.Stack()))
	p.tell(agent.Notice{
		Reason: "NRIFailed", Summary: "NRI plugin panicked", Warning: true,
		Message: fmt.Sprintf("rail-agent's NRI plugin panicked, and goes on: %v. This is a defect: please report it with the stack, which the log has", r),
	})
	return fmt.Errorf("panic: %v", r)
}

// tell logs a notice and passes it on, unless it is the same as the last one with its reason.
func (p *Plugin) tell(n agent.Notice, args ...any) {
	p.mu.Lock()
	again := p.told[n.Reason] == n.Message
	p.told[n.Reason] = n.Message
	p.mu.Unlock()
	if again {
		return
	}
	n.Write(p.Log, args...)
	if p.Tell != nil {
		p.Tell(n)
	}
}
