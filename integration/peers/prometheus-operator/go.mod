module github.com/rail-cni/rail-cni/integration/peers/prometheus-operator

go 1.25.5

tool github.com/prometheus-operator/prometheus-operator/example/alertmanager-webhook

require github.com/prometheus-operator/prometheus-operator v0.85.0 // indirect
