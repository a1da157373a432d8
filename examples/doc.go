// Package examples holds the manifests that users apply, as files to read and
// copy, and as embedded files for programs that use them unchanged: the demo
// and the tests.
//
// It imports nothing of the project, so that every part of it may use the
// examples.
package examples
