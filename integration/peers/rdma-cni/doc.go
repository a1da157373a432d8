// Package rdmacni pins rdma-cni, the plugin that our rdma works with or
// replaces in a chain; "make peers" builds it into bin/peers as "rdma".
//
// It has a module apart from the CNI project's plugins, because it needs newer
// versions of their dependencies, and each is built from the dependencies of
// its own release.
package rdmacni
