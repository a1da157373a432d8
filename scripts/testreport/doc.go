// Testreport reads what "go test -json" says and tells it to a person: a line
// for each package, the whole output of a test that failed, the reason of one
// that was skipped, and nothing of those that passed.
//
//	go test -json ./... | testreport -counts FILE
//	testreport -sum FILE
//
// Several runs may add to one counts file; -sum adds them up, names the tests
// that failed once more, and prints the closing line.
//
// It exits with 1 when a test or a build failed, or when no test ran at all: a
// green run of nothing is a broken test set-up.
package main
