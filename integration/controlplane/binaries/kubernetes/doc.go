// Package kubernetes pins the programs that are built from Kubernetes' libraries, for the
// tests: those of Kubernetes and etcd, Multus (thin: multus; thick: multus-daemon with
// multus-shim), and helm. Makefile says where each is put.
//
// They are in one module because Go compiles a library once for each version, and each of
// them compiles most of client-go: apart they take half as long again. The programs are
// those of their releases. Multus, etcd and helm have the libraries that Kubernetes'
// release has, or newer ones; peers that we measure ourselves against (../../../peers) are
// built from those of their own releases.
package kubernetes
