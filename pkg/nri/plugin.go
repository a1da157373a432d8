package nri

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/publish"
)

// Options are the options of a plugin.
type Options struct {
	// Socket is the path of the runtime's NRI socket in the file system of this process. The socket
	// need not exist.
	Socket string
	// Lookup returns the rail information of a pod by the ID of the pod's sandbox. It returns nil
	// if the pod holds no rail. Several goroutines may call it at the same time.
	Lookup func(ctx context.Context, sandboxID string) (*publish.Publication, error)
	// Root is the root directory of the host's files, in which the char devices and the pods'
	// directories are. "" means the root directory of this process.
	Root string

	Dirs   *notify.Dirs           // the process's watcher of directories, which reports changes in the socket's directory
	Notify func(component.Notice) // called with each notice; must not block; may be nil
	Log    *slog.Logger
}

const (
	// The pause between two tries to connect doubles from firstRest to lastRest. A change in the
	// socket's directory ends a pause. After a session that lasted at least goodSession, the pause
	// begins with firstRest again.
	firstRest   = 100 * time.Millisecond
	lastRest    = 30 * time.Second
	goodSession = 10 * time.Second
	// changeRest is the shortest time between two tries.
	changeRest = 50 * time.Millisecond
)

// Plugin is an NRI plugin. Its methods may be called concurrently.
type Plugin struct {
	Options
	slots      chan struct{} // one for each lookup that has not ended
	lookupTime time.Duration // the constant lookupTime, except in tests

	reporter *component.Reporter

	mu      sync.Mutex
	metrics metrics
	absent  bool // true if there is no socket and this was logged
}

// New returns a plugin. The plugin does nothing until [Plugin.Run] is called.
func New(o Options) *Plugin {
	return &Plugin{Options: o, slots: make(chan struct{}, maxLookups), lookupTime: lookupTime, reporter: component.NewReporter("nri", o.Log, o.Notify)}
}

// Component returns the plugin as a component of the agent.
func (p *Plugin) Component() component.Component {
	return component.Component{Name: "nri", Reporter: p.reporter, Run: p.Run, Collect: p.collect, Status: func() map[string]any {
		return map[string]any{"nri": p.read().Connected}
	}}
}

// Run keeps the plugin connected to the runtime until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	changed := component.NewTrigger()
	socket := p.Dirs.Subscribe(changed.Fire)
	defer socket.Close()
	pause := component.Backoff{First: firstRest, Last: lastRest}
	loop := component.Loop{Reporter: p.reporter, Trigger: changed, Settle: changeRest, Do: func(ctx context.Context) time.Time {
		socket.Watch(filepath.Dir(p.Socket))
		began := time.Now()
		err := p.try(ctx)
		if ctx.Err() != nil {
			return began
		}
		p.ended(err)
		if time.Since(began) > goodSession {
			pause.Reset()
		}
		return time.Now().Add(pause.Next())
	}}
	loop.Run(ctx)
}

// try connects to the runtime. It returns when the connection has ended.
func (p *Plugin) try(ctx context.Context) error {
	return p.reporter.Contain(func() error { return p.session(ctx) })
}

// count calls change with the metrics while they are locked.
func (p *Plugin) count(change func(*metrics)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.metrics)
}
