// Package rdmacni pins rdma-cni, the plugin beside which and in whose place our
// rdma stands in a chain; "make peers" builds it into bin/peers as "rdma".
//
// It has a module apart from the CNI project's plugins, because it wants newer
// versions of what those depend on, and each is to be built from the
// dependencies of its own release.
package rdmacni
