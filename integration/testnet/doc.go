// Package testnet makes the environment of the tests: network namespaces with
// veth NICs in them, nodes with a state directory, and calls of the plugins as
// a runtime makes them. It is imported by tests only.
//
// Everything is in namespaces that the test made and that end with it; the
// machine's own network is not changed. The package needs root, and fails the
// test with that text without it.
package testnet
