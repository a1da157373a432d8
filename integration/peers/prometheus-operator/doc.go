// Package prometheusoperator pins Prometheus Operator, for its definitions of PodMonitor and
// PrometheusRule, which package valuesets returns. None of its programs runs: go.mod names one as a
// tool so that it keeps the module.
package prometheusoperator
