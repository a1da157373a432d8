package nri

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
)

// metrics are the values of the plugin's metrics.
type metrics struct {
	Connected bool
	// Containers is the number of containers that got something. Errors is the number of containers
	// that did not get everything that they should get. Refused is the number of containers among
	// the latter that did not start.
	Containers, Errors, Refused uint64
	// MaxTime is the time that the slowest answer took.
	MaxTime time.Duration
}

// read returns the present values of the metrics.
func (p *Plugin) read() metrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.metrics
}

// collect sends the metrics.
func (p *Plugin) collect(out component.Metrics) {
	m := p.read()
	out.Gauge("rail_cni_nri_connected", "Whether the NRI plugin is connected to the runtime.", component.Bool(m.Connected))
	out.Counter("rail_cni_nri_containers_total", "Containers that the NRI plugin changed.", float64(m.Containers))
	out.Counter("rail_cni_nri_errors_total", "Containers that did not get all that the NRI plugin should give them.", float64(m.Errors))
	out.Counter("rail_cni_nri_refused_total", "Containers that did not start for that reason, because their pod requires it.", float64(m.Refused))
	out.Gauge("rail_cni_nri_longest_seconds", "Longest answer of the NRI plugin to the runtime.", m.MaxTime.Seconds())
}
