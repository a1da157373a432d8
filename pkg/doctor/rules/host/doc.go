// Package host has the rules about the machine: its kernel and modules, its limits and settings, and
// what lies between its GPUs and NICs.
package host
