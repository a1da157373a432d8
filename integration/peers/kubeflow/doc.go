// Package kubeflow pins Kubeflow's training operator, for the definition of PyTorchJob that
// package pages holds examples/job to. None of its programs runs.
package kubeflow

import _ "github.com/kubeflow/training-operator/pkg/config" // keeps the module in go.mod
