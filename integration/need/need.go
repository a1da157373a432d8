// Package need decides what happens to a test that needs more than Go: root, or programs
// that make builds. Where they are missing, the test is skipped with the command that
// provides them.
//
// RAIL_CNI_TESTS=all, which "make test" sets, turns each skip into a failure.
// RAIL_CNI_TESTS=quick, which "make check" sets, skips these tests also where they could
// run. Without it, tests that start a cluster run only if -run chooses them ([Cluster]).
package need

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that selects the tests to run.
const Variable = "RAIL_CNI_TESTS"

// missing is an error for which a test is skipped.
type missing string

func (m missing) Error() string { return string(m) }

// Built returns an error if there is no program at path. target is the make target that
// builds it.
func Built(path, target string) error {
	if quick() && target != "tools" { // make check builds the tools
		return missing(filepath.Base(path) + " is left out of the quick tests: run make test as root")
	}
	if _, err := os.Stat(path); err != nil {
		return missing(fmt.Sprintf("%s is not built: run make %s, or make test as root (%v)", filepath.Base(path), target, err))
	}
	return nil
}

// Installed returns the path of a program that "make test" installs with a Debian package,
// and an error if it is missing.
func Installed(program, debian string) (string, error) {
	if quick() {
		return "", missing(program + " is left out of the quick tests: run make test as root")
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", missing(fmt.Sprintf("%s is missing: install the package %s, or run make test as root (%v)", program, debian, err))
	}
	return path, nil
}

// namespaces returns why this process cannot make network namespaces, or nil.
var namespaces = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: run make test as root")
	}
	// In a child: a thread of this process cannot be used for that. The main thread
	// never ends, and /proc/self/ns/net would lead to its new namespace.
	child := exec.Command("true")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := child.Run(); err != nil {
		return fmt.Errorf("makes network namespaces, which this root may not (%w): run make test where `unshare --net true` works", err)
	}
	return nil
})

// Root skips the test if the process cannot make network namespaces or mounts.
func Root(t testing.TB) {
	t.Helper()
	if quick() {
		t.Skip("needs root, and is left out of the quick tests: run make test as root")
	}
	if err := namespaces(); err != nil {
		Skip(t, err)
	}
}

// Cluster is [Root] for a test that starts a cluster of Kubernetes, which takes minutes:
// "go test ./..." skips it, with the command that runs it. It runs if [Variable] is "all",
// or if -run chose it.
func Cluster(t testing.TB) {
	t.Helper()
	Root(t)
	if all() || chosen() {
		return
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	t.Skipf("starts a cluster, which takes minutes: run go test -v %s -run '^%s$', or make test as root", testedPackage(), name)
}

// chosen reports whether -run chooses tests of this process.
func chosen() bool {
	run := flag.Lookup("test.run")
	return run != nil && run.Value.String() != ""
}

// testedPackage returns the import path of the package whose tests these are, and "." if
// it is not known.
func testedPackage() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Path == "" {
		return "."
	}
	return strings.TrimSuffix(info.Path, ".test")
}

// NoError ends the test if err is not nil. If err wraps an error of [Built] or [Installed],
// the test is skipped.
func NoError(t testing.TB, err error) {
	t.Helper()
	switch {
	case notBuilt(err):
		Skip(t, err)
	case err != nil:
		t.Fatal(err)
	}
}

// Skip skips the test because of err, which says what the test lacks.
func Skip(t testing.TB, err error) {
	t.Helper()
	if all() {
		t.Fatal(err)
	}
	t.Skip(err)
}

// Main returns the exit code of a TestMain that cannot run its tests because of err. If
// err wraps an error of [Built], the package is skipped.
func Main(err error) int {
	if notBuilt(err) && !all() {
		fmt.Println("skipped:", err) // testreport counts it
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func notBuilt(err error) bool {
	var m missing
	return errors.As(err, &m)
}

func all() bool   { return os.Getenv(Variable) == "all" }
func quick() bool { return os.Getenv(Variable) == "quick" }
