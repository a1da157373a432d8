// Mutants changes the code of packages in small ways, one at a time, and runs the tests that are to
// notice: a mutant that no test kills shows a test that is missing. The changes are those of gremlins
// (https://gremlins.dev), which plants them in a copy of the tree.
//
//	mutants [-one-in N] [-seed S] [-tests PACKAGES] [-out DIR] DIRECTORY…
//
// The tests of a mutant are those of its own package, then those of -tests. Everything runs in
// network, mount and process namespaces of their own, as root: code with a fault in it may remove what
// it should not, and leaves nothing.
//
// What lives is compared with mutants.txt, where survivors stand that somebody has judged. The
// exit code is 1 if another one lives.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// gremlins is a pinned release. "go run" checks it against the checksum database.
const gremlins = "github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0"

type options struct {
	oneIn, seed int
	tests, out  string
}

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(asGo(os.Args[1:]))
	}
	var o options
	flag.IntVar(&o.oneIn, "one-in", 1, "test one in `N` mutants")
	flag.IntVar(&o.seed, "seed", time.Now().YearDay(), "which of them: those whose hash is this one modulo N; the default is the day")
	flag.StringVar(&o.tests, "tests", "", "`packages` whose tests run as well, such as ./pkg/part/plans")
	flag.StringVar(&o.out, "out", "bin/mutants", "`directory` of the reports, one for each package")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(o options, packages []string) error {
	if len(packages) == 0 || o.oneIn < 1 {
		return errors.New("name directories of packages, such as pkg/ledger; -one-in is 1 or more")
	}
	judged, err := readJudged("scripts/mutants/mutants.txt")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, err := newTree(dir)
	if err != nil {
		return err
	}
	var unjudged []survivor
	for _, name := range packages {
		report := filepath.Join(o.out, strings.ReplaceAll(filepath.Clean(name), "/", "-")+".json")
		if err := t.mutate(o, filepath.Clean(name), report); err != nil {
			return err
		}
		var r result
		data, err := os.ReadFile(report)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			return fmt.Errorf("the report of gremlins: %w", err)
		}
		lived, err := r.survivors(t.source, filepath.Clean(name))
		if err != nil {
			return err
		}
		fresh := judged.without(lived)
		fmt.Printf("%s: %d mutants killed, %d live, %d of them judged before; %d are not covered by a test\n",
			name, r.Killed, len(lived), len(lived)-len(fresh), r.NotCovered)
		unjudged = append(unjudged, fresh...)
	}
	for _, s := range unjudged {
		fmt.Println("lives:", s)
	}
	if len(unjudged) > 0 {
		return fmt.Errorf("%d mutants live that nobody has judged: write a test that kills it, or why none can, in scripts/mutants/mutants.txt", len(unjudged))
	}
	return nil
}

// tree is a copy of the checkout.
type tree struct {
	dir, source, gremlins, shims string
}

// newTree copies the files that git tracks, or would track, below dir.
func newTree(dir string) (*tree, error) {
	t := &tree{dir: dir, source: filepath.Join(dir, "tree"), gremlins: filepath.Join(dir, "gremlins"), shims: filepath.Join(dir, "path")}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(t.source, 0o755), os.Mkdir(t.shims, 0o755), os.Symlink(self, filepath.Join(t.shims, "go"))); err != nil {
		return nil, err
	}
	for _, command := range []string{
		`git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --ignore-failed-read -cf - 2>/dev/null | tar -xf - -C "$1"`,
		`GOBIN=$1/.. GOFLAGS= go install ` + gremlins,
		`go mod download`, // gremlins asks for it where no network is
	} {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", command, "mutants", t.source)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
	}
	return t, nil
}

// mutate runs gremlins on the packages below a directory.
func (t *tree) mutate(o options, name, report string) error {
	report, err := filepath.Abs(report)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(report), 0o755); err != nil {
		return err
	}
	real, err := exec.LookPath("go")
	if err != nil {
		return err
	}
	// bash stays, and reaps what mutants leave.
	const inside = `mount -t tmpfs tmpfs /run; ip link set lo up; "$@"; exit`
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc", inside, "mutants",
		t.gremlins, "unleash", "--workers", "2", "--timeout-coefficient", "1000", // asGo bounds the tests
		"--invert-logical", "--invert-loopctrl", "--output-statuses", "lktv", "--output", report, filepath.Join(t.source, name))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	cmd.Dir = filepath.Join(t.source, name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-buildvcs=false", "PATH="+t.shims+":"+os.Getenv("PATH"),
		envGo+"="+real, envSource+"="+t.source, envTests+"="+o.tests,
		fmt.Sprint(envOneIn, "=", o.oneIn), fmt.Sprint(envSeed, "=", o.seed))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("gremlins on %s: %w", name, err)
	}
	return nil
}
