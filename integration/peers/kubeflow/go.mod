module github.com/rail-cni/rail-cni/integration/peers/kubeflow

go 1.25.5

require github.com/kubeflow/training-operator v1.8.1
