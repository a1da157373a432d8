// Package nics has the rules about the NICs of a node, their rails, their RDMA ports and their virtual
// functions.
package nics
