package main

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
)

func TestReportTellsWhatAPersonWants(t *testing.T) {
	for _, c := range []struct {
		name   string
		events string
		want   []string // in the output, in any order
		not    []string
		sum    string
		failed bool
	}{
		{
			name: "passed tests stay silent, leaves are counted",
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`,
			want: []string{"ok      p"},
			not:  []string{"chatter"},
			sum:  "tests: 1 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "what a passed test has measured is shown",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: home: median 5 ms, worst 7 ms\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
`,
			want: []string{"figures TestA: home: median 5 ms, worst 7 ms"},
			sum:  "tests: 1 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "a failed subtest is shown and named once",
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"    a_test.go:3: broken\n"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			want:   []string{"broken", "FAILED  p"},
			sum:    "FAILED p TestA/x\n    a_test.go:3: broken\ntests: 0 passed, 1 failed, 0 skipped\n",
			failed: true,
		},
		{
			name: "a skipped test gives its reason",
			events: `{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: no RDMA here: kernel\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestC"}
`,
			want: []string{"skipped p TestB: no RDMA here: kernel"},
			sum:  "tests: 1 passed, 0 failed, 1 skipped\n",
		},
		{
			name: "tests that are skipped for the same reason are told in one line",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: no RDMA here\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"pass","Package":"p","Test":"TestD"}
{"Action":"pass","Package":"p"}
`,
			want: []string{"skipped p TestA and 1 more: needs root\n", "skipped p TestB: no RDMA here\n"},
			not:  []string{"TestC"},
			sum:  "tests: 1 passed, 0 failed, 3 skipped\n",
		},
		{
			name: "a package whose TestMain runs nothing is skipped",
			events: `{"Action":"pass","Package":"o","Test":"TestA"}
{"Action":"output","Package":"p","Output":"skipped: etcd is not built (run make controlplane)\n"}
{"Action":"pass","Package":"p"}
`,
			want: []string{"skipped p: etcd is not built (run make controlplane)"},
			not:  []string{"ok      p"},
			sum:  "tests: 1 passed, 0 failed, 1 skipped\n",
		},
		{
			name: "the sum repeats the beginning of what a failed test logged",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: broken\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:4: ` + strings.Repeat("servers' logs ", 200) + `\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
`,
			want:   []string{"broken", "=== RUN"},
			sum:    "FAILED p TestA\n" + ("    a_test.go:3: broken\n    a_test.go:4: " + strings.Repeat("servers' logs ", 200))[:maxFirst] + " …\ntests: 0 passed, 1 failed, 0 skipped\n",
			failed: true,
		},
		{
			name: "a build that fails is a failure",
			events: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"a.go:1: syntax error\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}
`,
			want:   []string{"syntax error"},
			sum:    "FAILED build of p [p.test]\ntests: 0 passed, 1 failed, 0 skipped\n",
			failed: true,
		},
		{
			name:   "a package that ends outside of its tests is a failure",
			events: `{"Action":"output","Package":"p","Output":"panic in TestMain\n"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n",
			want:   []string{"panic in TestMain", "FAILED  p"},
			sum:    "FAILED p (the package as a whole)\npanic in TestMain\ntests: 0 passed, 1 failed, 0 skipped\n",
			failed: true,
		},
		{
			name:   "a run without any test is a failure",
			events: "go: warning: no packages\n",
			want:   []string{"go: warning: no packages"},
			sum:    "tests: 0 passed, 0 failed, 0 skipped\n",
			failed: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(need.SeedVariable, "")
			dir := t.TempDir()
			var out, sum strings.Builder
			reported := reportInto(strings.NewReader(c.events), &out, dir, "p")
			summed := printSum(&sum, dir, "", false)
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, &out)
				}
			}
			for _, not := range c.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("output has %q:\n%s", not, &out)
				}
			}
			if kept, err := os.ReadFile(filepath.Join(dir, "p.json")); err != nil || string(kept) != c.events {
				t.Errorf("kept events: %q, %v", kept, err)
			}
			if sum.String() != c.sum {
				t.Errorf("sum is %q, want %q", &sum, c.sum)
			}
			if failed := reported != nil || summed != nil; failed != c.failed {
				t.Errorf("failed: %v (%v, %v), want %v", failed, reported, summed, c.failed)
			}
		})
	}
}

func TestSkippedTestIsAFailureWhereEveryTestMustRun(t *testing.T) {
	const passed = `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n"
	for events, want := range map[string]bool{
		passed: true,
		passed + `{"Action":"skip","Package":"p","Test":"TestB"}` + "\n":                                                                       false,
		passed + `{"Action":"output","Package":"q","Output":"skipped: etcd is not built\n"}` + "\n" + `{"Action":"pass","Package":"q"}` + "\n": false,
	} {
		dir := t.TempDir()
		if err := report(strings.NewReader(events), io.Discard, dir); err != nil {
			t.Fatal(err)
		}
		if err := printSum(io.Discard, dir, "", true); (err == nil) != want {
			t.Errorf("passed: %v (%v), want %v:\n%s", err == nil, err, want, events)
		}
		if err := printSum(io.Discard, dir, "", false); err != nil {
			t.Error(err)
		}
	}
}

// The lists are for those who keep "make test" within its time.
func TestSumSaysWhereTheTimeWentAgainstTheRunBefore(t *testing.T) {
	now, before := t.TempDir(), t.TempDir()
	run := func(dir, steps string, all ...string) {
		t.Helper()
		for _, events := range all {
			if err := report(strings.NewReader(events), io.Discard, dir); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "steps"), []byte(steps), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(before, `{"Name":"lint","Start":1,"Seconds":8,"CPU":9.5,"Ended":"ok"}
{"Name":"gone","Start":9,"Seconds":2,"CPU":1,"Ended":"ok"}
`, `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":11}
{"Action":"pass","Package":"p","Elapsed":31}
`)
	run(now, `{"Name":"lint","Start":100,"Seconds":10,"CPU":12.5,"Ended":"ok"}
{"Name":"tests","Start":110,"Seconds":90,"CPU":170,"Ended":"FAILED"}
`, `{"Action":"pass","Package":"p","Test":"TestA/x","Elapsed":30}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":31}
{"Action":"pass","Package":"p","Test":"TestQuick","Elapsed":0.5}
{"Action":"pass","Package":"p","Elapsed":32.25}
`, `{"Action":"pass","Package":"q","Test":"TestB","Elapsed":40}
{"Action":"pass","Package":"q","Elapsed":41}
`)
	var sum strings.Builder
	if err := printSum(&sum, now, before, true); err != nil {
		t.Fatal(err)
	}
	const want = `   step          seconds  CPU seconds  before  CPU before
   lint      ok       10           12       8          10
  tests  FAILED       90          170                    
    all              100          182      10          10
slowest packages:
    41.0 s  q
    32.2 s  p (before: 31.0 s)
slowest tests:
    40.0 s  q TestB
    31.0 s  p TestA (before: 11.0 s)
slower than before:
   +20.0 s  p TestA
tests: 4 passed, 0 failed, 0 skipped
`
	if sum.String() != want {
		t.Errorf("sum is\n%s\nwant\n%s", &sum, want)
	}
}

func TestFailureSaysHowToRepeatIt(t *testing.T) {
	t.Setenv(need.SeedVariable, "7")
	dir := t.TempDir()
	if err := report(strings.NewReader(`{"Action":"fail","Package":"p","Test":"TestA"}`+"\n"), io.Discard, dir); err == nil {
		t.Error("no error")
	}
	var sum strings.Builder
	if err := printSum(&sum, dir, "", false); err == nil || !strings.Contains(sum.String(), "RAIL_CNI_SEED=7 go test") {
		t.Errorf("%v\n%s", err, &sum)
	}
}

func TestLongestComesFirst(t *testing.T) {
	dir := t.TempDir()
	if err := keepDurations(dir, []timing{{"p", 3}, {"q", 40}, {"p", 90}, {"r", 5.4}}); err != nil {
		t.Fatal(err)
	}
	older := filepath.Join(dir, "older")
	if err := os.WriteFile(older, []byte("100 p\n7 s with, words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := longestFirst(strings.NewReader("p\nq\nr\ns with, words\nnew\n"), &out, []string{older, filepath.Join(dir, "durations.txt"), filepath.Join(dir, "missing")}); err != nil {
		t.Fatal(err)
	}
	if want := "new\nq\ns with, words\nr\np\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestCostsAreThoseOfTheProgramAndItsChildren runs programs as go test does, and wants their output,
// their exit status and their CPU seconds.
func TestCostsAreThoseOfTheProgramAndItsChildren(t *testing.T) {
	dir := t.TempDir()
	const work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
	for script, want := range map[string]int{"sh -c '" + work + "'; exit 3": 3, "kill -9 $$": 1, "exit 0": 0} {
		if status, err := runAndCost(dir, "", []string{"sh", "-c", script}); err != nil || status != want {
			t.Errorf("%s: status %d, %v, want %d", script, status, err, want)
		}
	}
	if status, err := runAndCost(dir, "", []string{"/no/program"}); err == nil || status == 0 {
		t.Errorf("a program that is not there: status %d, %v", status, err)
	}
	if _, err := runAndCost(dir, "a name", []string{"true"}); err != nil {
		t.Error(err)
	}
	costs, err := readLines[timing](filepath.Join(dir, costsFile))
	if err != nil || len(costs) != 4 || costs[3].Name != "a name" {
		t.Fatalf("costs %v, %v, want 4, the last with its name", costs, err)
	}
	slices.SortFunc(costs, func(a, b timing) int { return cmp.Compare(a.Seconds, b.Seconds) })
	if most := costs[3]; most.Seconds < 0.02 || filepath.Base(most.Name) != "testreport" {
		t.Errorf("the most is %v, want the seconds of the loop, for this directory", most)
	}
}
