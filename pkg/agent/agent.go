package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/procfs"

	"github.com/rail-cni/rail-cni/pkg/component"
)

// Options are the options of an agent.
type Options struct {
	NodeName string
	Version  string
	// Keeps is true if the agent works for the node NodeName. Then a metric has the version of the
	// agent and the name of the node.
	Keeps bool

	Metrics string // the address at which metrics and health are served, "" for none
	// MetricsTLS encrypts the metrics. If it is nil, they are not encrypted. MetricsGuard decides
	// who may read the metrics. If it is nil, everybody may.
	MetricsTLS   *tls.Config
	MetricsGuard func(http.Handler) http.Handler
	// ReadyWithoutMetrics is true if the agent counts as ready even while its metrics are not
	// served.
	ReadyWithoutMetrics bool
	Socket              string // the path of the socket for railctl, "" for none
	// Health is the address at which only /healthz and /readyz are served, without TLS. It is ""
	// for none.
	Health string

	Notify func(component.Notice) // called with each notice; must not block; nil if notices are only logged
	Log    *slog.Logger
}

// Agent runs components.
type Agent struct {
	Options
	reporter     *component.Reporter
	components   []component.Component
	registry     *prometheus.Registry
	metrics      http.Handler
	metricsState metricsState
	began        time.Time
}

// New returns an agent without components.
func New(o Options) *Agent {
	a := &Agent{
		Options: o, registry: prometheus.NewRegistry(), began: time.Now(), reporter: component.NewReporter("agent", o.Log, o.Notify),
	}
	a.metrics = component.OneAtATime(a.exposition(), "another scrape is waiting: a driver is slow to answer", 10*time.Second)
	a.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	if o.Keeps {
		a.registry.MustRegister(collector(func(out component.Metrics) {
			out.Gauge("rail_cni_agent_info", "Version of the agent.", 1, "version", o.Version, "node_name", o.NodeName)
		}))
	}
	return a
}

// Add adds components. A component without a Reporter gets one. Add must not be called after Run.
func (a *Agent) Add(components ...component.Component) {
	for _, c := range components {
		if c.Reporter == nil {
			c.Reporter = component.NewReporter(c.Name, a.Log, a.Notify)
		}
		a.registry.MustRegister(collectorOf(&c))
		a.components = append(a.components, c)
	}
}

// Run runs the components until ctx ends. If it cannot start, it returns an error at once. This
// happens if the address of the metrics is malformed, if it cannot listen at the address Health, or
// if another agent has the socket.
func (a *Agent) Run(ctx context.Context) error {
	if err := checkMetrics(a.Metrics); err != nil {
		return err
	}
	socket, err := a.private()
	if err != nil {
		return err
	}
	health, err := a.health()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // runs before the other deferred calls
	for _, c := range a.components {
		if c.Run != nil {
			all.Go(func() { c.Reporter.Run(ctx, c.Run) })
		}
	}
	if a.Metrics != "" {
		a.metricsState.err = errNotListening
		all.Go(func() { a.serveMetrics(ctx, a.answers(a.MetricsGuard)) })
	}
	failed := make(chan error, 2)
	for _, s := range []*server{socket, health} {
		if s != nil {
			all.Go(func() { failed <- s.serve(ctx) })
		}
	}
	a.Log.Info("agent has started", "node", a.NodeName, "version", a.Version)
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

// Status returns the status as a JSON object. It has the agent's own fields and the fields that the
// components add.
func (a *Agent) Status() ([]byte, error) {
	s := map[string]any{"version": a.Version, "node": a.NodeName, "since": a.began, "memoryBytes": resident()}
	for i := range a.components {
		if add := a.components[i].Status; add != nil {
			maps.Copy(s, add())
		}
	}
	return json.Marshal(s)
}

// healthy returns an error if a component hangs.
func (a *Agent) healthy() error {
	return a.ask(func(c *component.Component) func() error { return c.Healthy })
}

// ready returns an error while the node must not be used.
func (a *Agent) ready() error {
	errs := []error{a.ask(func(c *component.Component) func() error { return c.Ready }), a.healthy()}
	if !a.ReadyWithoutMetrics {
		errs = append(errs, a.metricsState.get())
	}
	return errors.Join(errs...)
}

// ask calls one function of each component and returns their errors. handler selects the function
// of a component.
func (a *Agent) ask(handler func(*component.Component) func() error) error {
	var errs []error
	for i := range a.components {
		if f := handler(&a.components[i]); f != nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// resident returns the resident memory of this process in bytes. It returns 0 if this cannot be
// read.
func resident() uint64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	stat, err := self.Stat()
	if err != nil {
		return 0
	}
	return uint64(stat.ResidentMemory())
}
