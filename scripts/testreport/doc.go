// Testreport reads the output of "go test -json" and prints for a person: a
// line for each package, the whole output of a failed test, the reason for which
// tests were skipped, and nothing about those that passed.
//
//	go test -json ./... | testreport -counts FILE
//	testreport [-no-skips] -sum FILE
//
// Several runs may add to one counts file; -sum adds them up, prints the slowest
// tests and packages, repeats the names of failed tests, and prints the last line. With -no-skips, as in "make test", a
// skipped test is a failure.
//
// It exits with 1 when a test or a build failed, or when no test ran at all: a
// successful run without tests is a broken test set-up.
package main
