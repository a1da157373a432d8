// Package kubernetes pins a newer release of Kubernetes than the one that the tests have by
// themselves, and its etcd: "make … KUBERNETES=1.37" builds and runs it
// (docs/reference/kubernetes.md). Multus and helm are those of the module beside it.
package kubernetes
