// Package nicplugin runs rail-agent's device plugin (pkg/deviceplugin) in a process that a
// test may kill, on NICs that do not exist: eight NICs and eight GPUs behind PCIe
// switches, on two NUMA nodes. The process is the test's own binary, whose TestMain calls
// [Asked]. It reads its configuration, and the state of the NICs, from a directory.
package nicplugin
