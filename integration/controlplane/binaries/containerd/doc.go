// Package containerd pins containerd 2 and its shim for the tests: "make
// cluster-binaries" builds them into bin/tools/runtime2, beside Debian's containerd in
// bin/tools/runtime, which speaks no NRI. They are built from the dependencies of their
// own release, so they have a module for themselves.
package containerd
