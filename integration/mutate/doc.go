// Package mutate has everything that a pod can do to an interface, as one table:
// tests do each of it to a NIC that is lent, and look at what comes home. The
// table of docs/returned.md is made of it.
package mutate
