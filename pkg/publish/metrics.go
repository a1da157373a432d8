package publish

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rail-cni/rail-cni/pkg/component"
)

// metrics are those of a keeper.
type metrics struct {
	fileFailures uint64
	took         prometheus.Histogram
}

func newMetrics() metrics {
	return metrics{took: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "rail_cni_publish_seconds", Help: "Time from when a pod's first rail was lent to its first files.",
		Buckets: []float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10},
	})}
}

// wrote counts a pod whose first files were written, the given time after its first rail was
// lent.
func (m *metrics) wrote(after time.Duration) {
	m.took.Observe(max(after, 0).Seconds()) // the clock may have been set
}

// Component returns the keeper as a component of the agent.
func (k *Keeper) Component() component.Component {
	return component.Component{Name: "publisher", Reporter: k.reporter, Run: k.Run, Collect: k.collect}
}

// collect sends the metrics of the publisher.
func (k *Keeper) collect(ch chan<- prometheus.Metric) {
	const failures, failuresHelp = "rail_cni_publish_failures_total", "Failed tries to tell a pod of its rails, by what was not written."
	k.mu.Lock()
	pods, files := len(k.pods), k.metrics.fileFailures
	k.mu.Unlock()
	component.Gauge(ch, "rail_cni_published_pods", "Pods that are told of their rails.", float64(pods))
	component.Counter(ch, failures, failuresHelp, float64(files), "what", "files")
	component.Counter(ch, failures, failuresHelp, float64(k.annotator.failures()), "what", "annotation")
	k.metrics.took.Collect(ch)
}
