// Testreport reads the output of "go test -json" and prints for a person: a
// line for each package, the whole output of a failed test, the reason for which
// tests were skipped, and nothing about those that passed.
//
//	go test -json ./... | testreport [-into DIR -as NAME]
//	testreport [-no-skips] -sum DIR [-before DIR]
//	go test -exec "testreport -cost-into DIR" ./...
//	testreport -cost-into DIR -as NAME PROGRAM …
//	testreport -longest-first FILES < NAMES
//	testreport -seed
//
// Several runs may keep their counts in one directory, each with its events as NAME.json.
// With -cost-into, testreport runs a test program in the place of go test, or any PROGRAM, and
// keeps the CPU seconds that it took together with the programs that it waited for, under NAME or
// the directory of its package.
//
// -sum adds the counts up, prints the steps of scripts/steps.sh, the packages and tests that
// took the most time, and the most CPU seconds, and those that were quicker in the runs of -before,
// repeats the names of failed tests with the beginning of their logs, and prints the last line. With -no-skips, as in
// "make test", a skipped test is a failure.
//
// It exits with 1 when a test or a build failed, or when no test ran at all: a
// successful run without tests is a broken test set-up.
package main
