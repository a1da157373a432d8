// Package kubernetes pins the programs of Kubernetes for the tests: "make
// controlplane" builds kube-apiserver into bin/tools/controlplane, "make
// cluster-binaries" the others. They are built from the dependencies of their own
// release, so they have a module for themselves.
package kubernetes
