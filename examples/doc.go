// Package examples holds the manifests that users apply, as files to read and
// copy, and as embedded files for programs that use them unchanged: the demo
// and the tests.
//
// To read the networks of a file:
//
//	networks, err := examples.Networks("roce-nads.yaml")
package examples
