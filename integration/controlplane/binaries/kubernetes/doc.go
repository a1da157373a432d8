// Package kubernetes pins kube-apiserver for the tests; "make controlplane"
// builds it into bin/tools/controlplane. It is built from the dependencies of
// its own release, so it has a module for itself.
package kubernetes
