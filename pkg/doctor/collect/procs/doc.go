// Package procs reads facts of the processes of a node: daemons and their limits, and the containers
// of pods with their variables, devices and GPUs.
//
// A pod may have filled its files with anything. So what is read of a pod is bounded, no link in its
// file system is followed, and nothing is opened there that may wait for a server.
package procs
