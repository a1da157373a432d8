package publish

import "github.com/rail-cni/rail-cni/pkg/component"

// metrics are the metrics of a keeper.
type metrics struct {
	fileFailures uint64
	// took has the times from the moment when a pod's first rail was lent until the pod's first
	// files were written.
	took *component.Histogram
}

func newMetrics() metrics {
	return metrics{took: component.NewHistogram(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)}
}

// Component returns the keeper as a component of the agent.
func (k *Keeper) Component() component.Component {
	return component.Component{Name: "publisher", Reporter: k.reporter, Run: k.Run, Collect: k.collect}
}

// collect sends the metrics of the publisher.
func (k *Keeper) collect(out component.Metrics) {
	const failed = "Failed tries to publish a pod's rail information, by what was not written."
	k.mu.Lock()
	pods, files := len(k.pods), k.metrics.fileFailures
	k.mu.Unlock()
	out.Gauge("rail_cni_published_pods", "Pods with published rail information.", float64(pods))
	out.Counter("rail_cni_publish_failures_total", failed, float64(files), "what", "files")
	out.Counter("rail_cni_publish_failures_total", failed, float64(k.annotator.failures()), "what", "annotation")
	out.Histogram("rail_cni_publish_seconds", "Time from when a pod's first rail was lent to its first files.", k.metrics.took)
}
