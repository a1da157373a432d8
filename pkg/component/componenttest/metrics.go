package componenttest

import (
	"fmt"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/component"
)

// Metrics collects metrics as lines of text: name{label="value",…} value. The value of a histogram
// is its count.
type Metrics []string

// Collect calls collect and returns the metrics that it sends.
func Collect(collect func(out component.Metrics)) Metrics {
	var m Metrics
	collect(&m)
	return m
}

func (m *Metrics) add(name string, value any, labels []string) {
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		if labels[i+1] != "" {
			pairs = append(pairs, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
		}
	}
	if len(pairs) > 0 {
		name += "{" + strings.Join(pairs, ",") + "}"
	}
	*m = append(*m, fmt.Sprint(name, " ", value))
}

// Gauge adds a gauge.
func (m *Metrics) Gauge(name, _ string, value float64, labels ...string) { m.add(name, value, labels) }

// Counter adds a counter.
func (m *Metrics) Counter(name, _ string, value float64, labels ...string) {
	m.add(name, value, labels)
}

// Histogram adds a histogram.
func (m *Metrics) Histogram(name, _ string, h *component.Histogram, labels ...string) {
	count, _, _ := h.Read()
	m.add(name, count, labels)
}
