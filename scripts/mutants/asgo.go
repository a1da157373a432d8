package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The environment of asGo.
const (
	envGo     = "MUTANTS_GO"     // the program
	envSource = "MUTANTS_SOURCE" // the tree without a mutant
	envTests  = "MUTANTS_TESTS"  // packages whose tests run as well
	envOneIn  = "MUTANTS_ONE_IN"
	envSeed   = "MUTANTS_SEED"
)

// Exit codes that gremlins reads (internal/engine/executor.go, getTestFailedStatus).
const (
	killed    = 1
	notViable = 2 // "does not compile"; here also: not of this sample
	lives     = 3 // here also: a failure of ours, so that it is not overlooked
)

// The longest times of a mutant's own tests, and of the others. A mutant that exceeds them hangs.
const (
	boundOwn  = "2m"
	boundMore = "20m"
)

// asGo is "go" for gremlins, and returns the exit code. It differs in three ways: a mutant that is
// not of the sample does not run, the tests of other packages follow, and a mutant that hangs ends with
// its tests' time and counts as killed. Gremlins itself ends only "go", not what that started.
func asGo(args []string) int {
	if len(args) == 0 || args[0] != "test" {
		return execute(args...)
	}
	tests := strings.Fields(os.Getenv(envTests))
	if i := slices.Index(args, "-coverprofile"); i >= 0 {
		if code := execute(args...); code != 0 || len(tests) == 0 {
			return code
		}
		// What other packages' tests cover, often in programs that they run, is not known.
		if err := coverAll(args[i+1], args[len(args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			return lives
		}
		return 0
	}
	in, err := inSample()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return lives
	}
	if !in {
		return notViable
	}
	code := execute("test", "-failfast", "-timeout", boundOwn, args[len(args)-1])
	if code != 0 || len(tests) == 0 {
		return code
	}
	return execute(append([]string{"test", "-failfast", "-timeout", boundMore}, tests...)...)
}

func execute(args ...string) int {
	cmd := exec.Command(os.Getenv(envGo), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return lives
	}
	return 0
}

// coverAll adds all code below the directory to the profile.
func coverAll(profile, pattern string) error {
	var b bytes.Buffer
	err := filepath.WalkDir(strings.TrimSuffix(pattern, "/..."), func(name string, _ fs.DirEntry, err error) error {
		if isCode(name) {
			fmt.Fprintf(&b, "%s/%s:1.1,100000.1 1 1\n", module, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(profile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

const module = "github.com/rail-cni/rail-cni"

func isCode(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// inSample reports whether the mutant of the working directory is one of this run's. Its hash is
// that of its line, so that it does not depend on the lines above.
func inSample() (bool, error) {
	oneIn, err := strconv.ParseUint(os.Getenv(envOneIn), 10, 32)
	if err != nil || oneIn < 2 {
		return true, err
	}
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 32)
	if err != nil {
		return false, err
	}
	line, err := mutatedLine(".", os.Getenv(envSource))
	if err != nil {
		return false, err
	}
	// Not FNV: lines with the same end have the same remainder. Of 1,421 mutants a sample of one
	// in 20 had 13.
	h := sha256.Sum256([]byte(line))
	return binary.BigEndian.Uint64(h[:])%oneIn == seed%oneIn, nil
}

// mutatedLine returns the path and the first line in which code below dir differs from the source.
func mutatedLine(dir, source string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	root := abs // the worker's copy
	for ; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == "/" {
			return "", fmt.Errorf("%s is in no module", abs)
		}
	}
	found := ""
	err = filepath.WalkDir(abs, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !isCode(name) {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		is, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		was, err := os.ReadFile(filepath.Join(source, rel))
		if err != nil {
			return err
		}
		if bytes.Equal(is, was) {
			return nil
		}
		lines := strings.Split(string(was), "\n")
		for i, line := range strings.Split(string(is), "\n") {
			if i >= len(lines) || line != lines[i] {
				found = rel + ":" + line
				return fs.SkipAll
			}
		}
		return nil
	})
	if err == nil && found == "" {
		err = errors.New("no mutant in " + abs)
	}
	return found, err
}
