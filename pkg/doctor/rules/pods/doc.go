// Package pods has the rules about the pods of a node that hold a NIC: their containers, variables,
// devices, interfaces and addresses.
package pods
