// Package report tells a person about the address pools of a cluster: which
// networks take addresses from which pool and which pods hold them ([Pools]), which
// address a network hands out next ([Explain]), and what is wrong with the ranges
// ([Check]). It only reads, and runs wherever the API server can be reached.
//
// A network is a configuration that uses whereabouts, from a
// NetworkAttachmentDefinition or a file. Objects that cannot be read are returned as
// errors beside the results; the rest is still shown.
package report
