package component

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge sends a gauge. labels are pairs of a name and a value; a pair with an empty value is
// left out.
func Gauge(ch chan<- prometheus.Metric, name, help string, value float64, labels ...string) {
	send(ch, prometheus.GaugeValue, name, help, value, labels)
}

// Counter is Gauge for a counter.
func Counter(ch chan<- prometheus.Metric, name, help string, value float64, labels ...string) {
	send(ch, prometheus.CounterValue, name, help, value, labels)
}

// Bool returns 1 if b is true, else 0.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func send(ch chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		if labels[i+1] != "" {
			names, values = append(names, labels[i]), append(values, strings.ToValidUTF8(labels[i+1], "\uFFFD"))
		}
	}
	desc := prometheus.NewDesc(name, help, names, nil)
	m, err := prometheus.NewConstMetric(desc, kind, value, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	ch <- m
}

// Collector returns a collector of the component's metrics and of its panics. It names no
// metric in advance: drivers name those of RDMA devices.
func (c *Component) Collector() prometheus.Collector { return collector{c} }

type collector struct{ *Component }

// Describe sends nothing.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics. A panic loses those that would have come after it.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	if c.Reporter == nil {
		if c.Component.Collect != nil {
			c.Component.Collect(ch)
		}
		return
	}
	if c.Component.Collect != nil {
		_ = c.Reporter.Contain(func() error { c.Component.Collect(ch); return nil }) // it is reported
	}
	Counter(ch, "rail_cni_panics_total", "Panics of a component of the agent, which went on.", float64(c.Reporter.Panics()), "component", c.Name)
}
