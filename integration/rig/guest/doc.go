// Command guest is the first process of the rig's virtual machine. It mounts
// what a Linux user expects, loads the kernel modules, runs one test binary as
// [wire.Job] says, sends its output over the second serial port, and says at
// the end how the test and the kernel fared.
//
// The first serial port is the kernel's console; so are this program's own
// stdout and stderr, for the case that it crashes.
package main
