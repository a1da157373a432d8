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

// Options configures an agent.
type Options struct {
	NodeName string
	Version  string
	// Keeps: the agent keeps the node NodeName, and a metric names both.
	Keeps bool

	Metrics string // address to serve metrics and health at, "" for none
	// MetricsTLS encrypts the metrics, and MetricsGuard decides who may read
	// them. nil means no encryption, or no restriction.
	MetricsTLS   *tls.Config
	MetricsGuard func(http.Handler) http.Handler
	// ReadyWithoutMetrics: the agent is ready although its metrics are not served.
	ReadyWithoutMetrics bool
	Socket              string // path of the socket for railctl, "" for none
	// Health is the address of /healthz and /readyz alone, without TLS, "" for none.
	Health string

	Notify func(component.Notice) // passes notices on and does not block; nil = the log is enough
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

// Run runs the components until ctx ends. It returns an error at once if it cannot start: if the
// address of the metrics is malformed, if it cannot listen at the address Health, or if another
// agent has the socket.
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
	defer cancel() // before the other defers
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

// Status returns the status, a JSON object: the agent's own, and what the components add.
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

// ask returns the errors of the functions that of selects, one of each component.
func (a *Agent) ask(of func(*component.Component) func() error) error {
	var errs []error
	for i := range a.components {
		if f := of(&a.components[i]); f != nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// resident returns the process' resident memory in bytes, 0 if that cannot be read.
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
