// Package report tells a person about the address pools of a cluster: which
// networks take addresses from which pool and who holds them ([Pools]), which
// address a network hands out next ([Explain]), and what is wrong with the ranges
// ([Check]). It only reads, and runs anywhere with a way to the API server.
//
// A network is a configuration that uses whereabouts, of a
// NetworkAttachmentDefinition or of a file. What cannot be read is an error
// beside the rest, never a reason to show nothing.
package report
