// Command guest is the first process of the rig's virtual machine. It mounts
// the usual file systems, loads the kernel modules, runs one test binary as
// [wire.Job] describes, sends its output over the second serial port, and at
// the end reports the results of the test and the kernel's taint.
//
// The first serial port is the kernel's console, and this program's own stdout
// and stderr in case it crashes.
package main
