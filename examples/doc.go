// Package examples holds what users apply, as files to read and copy, and
// gives the same files to programs that run them as they are: the demo and the
// tests.
//
// It imports nothing of the project, so that every part of it may use the
// examples.
package examples
