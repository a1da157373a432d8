// Package monitoring holds Grafana dashboards and Prometheus alert rules for the metrics of
// rail-agent. The chart has links to them, and kustomize takes them as a component. The
// package has tests only.
package monitoring
