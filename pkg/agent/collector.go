package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rail-cni/rail-cni/pkg/component"
)

// collector is a function that sends metrics.
type collector func(out component.Metrics)

// collectorOf returns the collector of a component's metrics and of the number of its panics. If
// the collection panics, the remaining metrics of the component are lost.
func collectorOf(c *component.Component) collector {
	return func(out component.Metrics) {
		if c.Collect != nil {
			_ = c.Reporter.Contain(func() error { c.Collect(out); return nil }) // the reporter has already reported the error
		}
		out.Counter("rail_cni_panics_total", "Panics of a component of the agent, which went on.", float64(c.Reporter.Panics()), "component", c.Name)
	}
}

// Describe sends nothing, because the names of the metrics are not known in advance: drivers choose
// the names of counters of RDMA devices.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) { c(metrics{ch}) }

// metrics is the [component.Metrics] for one scrape.
type metrics struct{ ch chan<- prometheus.Metric }

func (m metrics) Gauge(name, help string, value float64, labels ...string) {
	m.value(prometheus.GaugeValue, name, help, value, labels)
}

func (m metrics) Counter(name, help string, value float64, labels ...string) {
	m.value(prometheus.CounterValue, name, help, value, labels)
}

func (m metrics) value(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	desc, values := describe(name, help, labels)
	metric, err := prometheus.NewConstMetric(desc, kind, value, values...)
	m.send(desc, metric, err)
}

func (m metrics) Histogram(name, help string, h *component.Histogram, labels ...string) {
	desc, values := describe(name, help, labels)
	count, sum, upTo := h.Read()
	metric, err := prometheus.NewConstHistogram(desc, count, sum, upTo, values...)
	m.send(desc, metric, err)
}

// describe returns the description of a metric and the values of its labels. labels has names and
// values in turn.
func describe(name, help string, labels []string) (*prometheus.Desc, []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		if labels[i+1] != "" {
			names, values = append(names, labels[i]), append(values, strings.ToValidUTF8(labels[i+1], "\uFFFD"))
		}
	}
	return prometheus.NewDesc(name, help, names, nil), values
}

// send sends a metric. If Prometheus would refuse the metric, it sends an error instead.
func (m metrics) send(desc *prometheus.Desc, metric prometheus.Metric, err error) {
	if err != nil {
		metric = prometheus.NewInvalidMetric(desc, err)
	}
	m.ch <- metric
}
