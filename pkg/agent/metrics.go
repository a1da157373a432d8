package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// metricsRetry is the time between tries to listen on the port of the metrics.
const metricsRetry = 5 * time.Second

var errNotListening = errors.New("metrics: not listening yet")

// metricsState has the reason why the metrics are not served, or nil if they are served.
type metricsState struct {
	mu  sync.Mutex
	err error
}

func (m *metricsState) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *metricsState) get() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// serveMetrics serves h at the address of the metrics until ctx ends. While another process has the
// port, it tries again and again. In the meantime the agent works without metrics.
func (a *Agent) serveMetrics(ctx context.Context, h http.Handler) {
	for ; ctx.Err() == nil; _ = wait.For(ctx, metricsRetry) {
		l, err := net.Listen("tcp", a.Metrics)
		if err == nil {
			a.metricsState.set(nil)
			if a.reporter.Over("metrics") {
				a.reporter.Report(component.Notice{Reason: "MetricsAvailable", Summary: "metrics are served", Message: "the metrics are served at " + a.Metrics})
			}
			if a.MetricsTLS != nil {
				l = tls.NewListener(l, a.MetricsTLS)
			}
			err = (&server{listener: l, handler: h}).serve(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		err = failure.From(err, failure.IO, "metrics").Cure("free the port, or name another one with --metrics")
		a.metricsState.set(err)
		a.reporter.OnceErr("metrics", err, component.Notice{Reason: "MetricsUnavailable", Summary: "metrics cannot be served", Warning: true})
	}
}

// exposition returns the handler of /metrics.
func (a *Agent) exposition() http.Handler {
	return promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // so that one bad metric of a driver does not affect other metrics
		ErrorLog:      slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
	})
}

// checkMetrics returns an error if the address is malformed, because then it is useless to try
// again.
func checkMetrics(address string) error {
	if address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	return nil
}
