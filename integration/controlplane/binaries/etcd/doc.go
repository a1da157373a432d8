// Package etcd pins etcd for the tests; "make controlplane" builds it into
// bin/tools/controlplane. kube-apiserver depends on other versions of the same
// modules, so both have a module for themselves.
package etcd
