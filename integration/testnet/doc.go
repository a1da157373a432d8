// Package testnet makes the real things that the tests work on: network
// namespaces with veth NICs in them, nodes with a state directory, and the
// plugins as a runtime calls them. It is imported by tests only.
//
// Everything lies in namespaces that the test made and that end with it;
// nothing of the machine's own network is touched. All of it needs root, and
// says so where it is not.
package testnet
