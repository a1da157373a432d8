// Package mutate has everything that a pod can do to an interface, as one
// table: tests apply each to a lent NIC, and check the NIC when it is returned.
// The table of docs/reference/returned.md is generated from it.
package mutate
