// Package machine reads the facts of a machine from its files: the kernel and its modules, limits and
// settings, the kernel's log, the CNI directories, and the node file.
package machine
