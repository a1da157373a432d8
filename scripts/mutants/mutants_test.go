package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const code = "package a\n\nfunc f(i int) bool { return i < 3 }\n\nfunc g(i int) bool { return i < 4 }\n"

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOnlySurvivorsThatNobodyJudgedAreReported(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/pkg/a/a.go", code)
	write(t, dir+"/judged", "# the bound is the caller's\npkg/a/a.go f CONDITIONALS_BOUNDARY func f(i int) bool { return i < 3 }\n")
	var r result
	err := json.Unmarshal([]byte(`{"mutants_killed": 1, "files": [{"file_name": "a.go", "mutations": [
		{"type": "CONDITIONALS_BOUNDARY", "status": "LIVED", "line": 3, "column": 31},
		{"type": "CONDITIONALS_NEGATION", "status": "KILLED", "line": 3, "column": 31},
		{"type": "CONDITIONALS_NEGATION", "status": "NOT COVERED", "line": 5, "column": 31},
		{"type": "CONDITIONALS_BOUNDARY", "status": "TIMED OUT", "line": 5, "column": 31}]}]}`), &r)
	if err != nil {
		t.Fatal(err)
	}
	lived, err := r.survivors(dir, "pkg/a")
	if err != nil || len(lived) != 2 {
		t.Fatalf("live: %v, %v", lived, err)
	}
	judged, err := readJudged(dir + "/judged")
	if err != nil {
		t.Fatal(err)
	}
	fresh := judged.without(lived)
	if want := "pkg/a/a.go g CONDITIONALS_BOUNDARY func g(i int) bool { return i < 4 } (5:31)"; len(fresh) != 1 || fresh[0].String() != want {
		t.Errorf("not judged: %v, want %s", fresh, want)
	}
}

// TestSampleIsOneInN makes mutants of a package and asks for each whether it is in the sample: over
// all seeds, each is once.
func TestSampleIsOneInN(t *testing.T) {
	source, worker := t.TempDir(), t.TempDir()
	write(t, source+"/pkg/a/a.go", code)
	write(t, worker+"/go.mod", "module a\n")
	t.Setenv(envSource, source)
	t.Setenv(envOneIn, "7")
	t.Setenv(envSeed, "0")
	write(t, worker+"/pkg/a/a.go", code)
	t.Chdir(worker + "/pkg/a")
	if _, err := inSample(); err == nil {
		t.Error("a tree without a mutant has one")
	}
	var times []int
	for i := range 20 {
		write(t, worker+"/pkg/a/a.go", strings.Replace(code, "3", fmt.Sprint(i+10), 1))
		n := 0
		for seed := range 7 {
			t.Setenv(envSeed, fmt.Sprint(seed+14))
			in, err := inSample()
			if err != nil {
				t.Fatal(err)
			}
			if in {
				n++
			}
		}
		times = append(times, n)
	}
	if slices.Max(times) != 1 || slices.Min(times) != 1 {
		t.Errorf("in samples: %v times, want once each", times)
	}
}

// The go of this test records its arguments.
func TestCallsOfGremlins(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/go.mod", "module a\n")
	write(t, dir+"/pkg/a/a.go", code)
	write(t, dir+"/go", "#!/bin/sh\necho \"$@\" >>"+dir+"/calls\n[ \"$1\" != fail ]\n")
	if err := os.Chmod(dir+"/go", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv(envGo, dir+"/go")
	t.Setenv(envSource, dir)
	t.Setenv(envOneIn, "1")
	t.Setenv(envTests, "./pkg/b ./pkg/c")
	write(t, dir+"/profile", "mode: set\n")
	for want, args := range map[string]string{
		"mod download\n": "mod download",
		"test -failfast -timeout 2m " + module + "/pkg/a\ntest -failfast -timeout 20m ./pkg/b ./pkg/c\n": "test -timeout 1s -failfast " + module + "/pkg/a",
		"test -cover -coverprofile " + dir + "/profile ./pkg/a/...\n":                                    "test -cover -coverprofile " + dir + "/profile ./pkg/a/...",
	} {
		_ = os.Remove(dir + "/calls")
		if code := asGo(strings.Fields(args)); code != 0 {
			t.Errorf("%s: exit code %d", args, code)
		}
		if calls, err := os.ReadFile(dir + "/calls"); err != nil || string(calls) != want {
			t.Errorf("%s: called %q, %v, want %q", args, calls, err, want)
		}
	}
	if profile, _ := os.ReadFile(dir + "/profile"); string(profile) != "mode: set\n"+module+"/pkg/a/a.go:1.1,100000.1 1 1\n" {
		t.Errorf("the profile is %q", profile)
	}
	if code := asGo([]string{"fail"}); code != killed {
		t.Errorf("a failure has exit code %d", code)
	}
}
