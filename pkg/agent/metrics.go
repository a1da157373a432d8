package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// metricsRetry is the time between tries to listen on the port of the metrics.
const metricsRetry = 5 * time.Second

var errNotListening = errors.New("metrics: not listening yet")

// metricsState is why the metrics are not served, nil if they are.
type metricsState struct {
	mu  sync.Mutex
	err error
}

func (m *metricsState) set(err error) (was error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, m.err = m.err, err
	return was
}

func (m *metricsState) get() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// serveMetrics serves h at the address of the metrics until ctx ends. It
// retries while another process has the port: the agent works without metrics,
// too.
func (a *agent) serveMetrics(ctx context.Context, h http.Handler) {
	for ; ctx.Err() == nil; _ = wait.For(ctx, metricsRetry) {
		l, err := net.Listen("tcp", a.Metrics)
		if err == nil {
			if was := a.metricsState.set(nil); was != nil && !errors.Is(was, errNotListening) {
				a.tell(a.Log, Notice{"MetricsAvailable", "metrics are served", "the metrics are served at " + a.Metrics, false})
			}
			if a.MetricsTLS != nil {
				l = tls.NewListener(l, a.MetricsTLS)
			}
			err = (&server{listener: l, handler: h}).serve(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		err = failure.WithCure(failure.Wrap(err, failure.IO, "metrics"), "free the port, or name another one by --metrics")
		if was := a.metricsState.set(err); was == nil || was.Error() != err.Error() {
			a.tell(a.Log, Notice{"MetricsUnavailable", "metrics cannot be served", err.Error(), true})
		}
	}
}

// metrics returns the handler of /metrics.
func (a *agent) metrics() http.Handler {
	return a.scraped(func(e *exposition) {
		a.collect(e)
		a.collectRDMA(e)
	})
}

// scraped returns a handler that answers with what collect adds, one scrape at a time.
func (a *agent) scraped(collect func(*exposition)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.scrapes.take(r.Context()) {
			w.Header().Set("Retry-After", "10")
			http.Error(w, "another scrape is waiting: a driver is slow to answer", http.StatusServiceUnavailable)
			return
		}
		defer a.scrapes.done()
		e := &exposition{}
		collect(e)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = e.WriteTo(w) // the client may be gone
	})
}

// turns lets one scrape run and one wait, so that goroutines do not pile up behind
// a slow driver.
type turns struct{ running, waiting chan struct{} }

func newTurns() turns { return turns{make(chan struct{}, 1), make(chan struct{}, 1)} }

// take waits for a turn. It reports false if another scrape waits already, or if
// ctx ends.
func (t turns) take(ctx context.Context) bool {
	select {
	case t.running <- struct{}{}:
		return true
	default:
	}
	select {
	case t.waiting <- struct{}{}:
		defer func() { <-t.waiting }()
	default:
		return false
	}
	select {
	case t.running <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t turns) done() { <-t.running }

// checkMetrics fails if the address is malformed: retrying would not help.
func checkMetrics(address string) error {
	if address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	return nil
}
