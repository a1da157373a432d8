// Package docs tests the documentation, and lets the tests of other packages read it.
//
// A page that describes the code is compared with the code: keys, error codes, metrics,
// events, records and commands. Those tests lie beside the code that they read; the
// tests of this package check that links lead somewhere, that every page can be reached
// from the README, that the README and its translation say the same, that the Chinese pages
// have the commands and outputs of the English ones, and that each block of commands is run by
// a test or says what it needs. The matrix of features is a table here.
//
// Only tests use the package. A test reads a table of a page:
//
//	rows := docs.Rows(docs.Section(t, "docs/reference/keys.md", "macvlan"))
package docs
