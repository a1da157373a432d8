package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/integration/need"
)

func main() {
	into := flag.String("into", "", "keep the counts and the events of this run in `DIR`")
	as := flag.String("as", "", "with -into: the events' file is `NAME`.json; with -cost-into: the program's name, in place of its package")
	sum := flag.String("sum", "", "print the sum of all runs in `DIR` and end")
	before := flag.String("before", "", "with -sum: compare with the runs in `DIR`, if there are any")
	noSkips := flag.Bool("no-skips", false, "with -sum: a skipped test is a failure")
	sortInput := flag.Bool("longest-first", false, "sort the lines of standard input by the seconds that the `FILES` of the arguments have of them, and end")
	costInto := flag.String("cost-into", "", "run the test program of the arguments, keep its CPU seconds in `DIR`, and end as it does")
	seed := flag.Bool("seed", false, "print the seed of the tests' samples, and end")
	flag.Parse()

	var err error
	switch {
	case *seed:
		_, err = fmt.Println(need.Seed())
	case *costInto != "":
		status, err := runAndCost(*costInto, *as, flag.Args())
		if err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
		}
		os.Exit(status)
	case *sortInput:
		err = longestFirst(os.Stdin, os.Stdout, flag.Args())
	case *sum != "":
		err = printSum(os.Stdout, *sum, *before, *noSkips)
	default:
		err = reportInto(os.Stdin, os.Stdout, *into, *as)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// reportInto reports the events of in. It keeps them, and their counts, in the directory dir
// if that is not empty.
func reportInto(in io.Reader, out io.Writer, dir, name string) error {
	if dir == "" {
		return report(in, out, "")
	}
	if name == "" {
		name = "events"
	}
	events, err := os.Create(filepath.Join(dir, name+".json"))
	if err != nil {
		return fmt.Errorf("keeping the events: %w", err)
	}
	err = report(io.TeeReader(in, events), out, dir)
	return errors.Join(err, events.Close())
}

// event is one line of "go test -json" (see "go doc test2json").
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build, in place of Package
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string // of a package: the build that it failed in
}

// tally is the result of one run. Only leaves are counted, not tests with
// subtests.
type tally struct {
	Passed   int
	Skipped  int
	Failed   []failed
	Tests    []timing // those without a slash in their names
	Packages []timing
}

// failed is a test, a package or a build that failed.
type failed struct {
	Name  string
	First string `json:",omitempty"` // the beginning of what the test logged
}

// maxFirst bounds the beginning of a failed test's log, in bytes. What starts servers also logs
// what they logged, thousands of lines, and a CI system may keep only the end of a run's output.
const maxFirst = 1500

// first returns the beginning of a test's log.
func first(output []string) string {
	var log strings.Builder
	for _, line := range output {
		if strings.HasPrefix(line, "=== ") || strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			continue
		}
		if log.WriteString(line); log.Len() > maxFirst {
			return strings.ToValidUTF8(log.String()[:maxFirst], "") + " …\n"
		}
	}
	return log.String()
}

// timing is how long a test or a package has taken, in seconds.
type timing struct {
	Name    string
	Seconds float64
}

// worth is the least number of seconds that is told, and kept of a test.
const worth = 1

// timed adds what an event says of a package, or of a test unless that is below worth.
func (t *tally) timed(e event) {
	switch {
	case e.Test == "":
		t.Packages = append(t.Packages, timing{e.Package, e.Elapsed})
	case e.Elapsed >= worth && !strings.Contains(e.Test, "/"):
		t.Tests = append(t.Tests, timing{e.Package + " " + e.Test, e.Elapsed})
	}
}

// add puts other's counts to t's.
func (t *tally) add(other tally) {
	t.Passed += other.Passed
	t.Skipped += other.Skipped
	t.Failed = append(t.Failed, other.Failed...)
	t.Tests = append(t.Tests, other.Tests...)
	t.Packages = append(t.Packages, other.Packages...)
}

// countsFile is the name of the file with the counts: a line of JSON, a tally, for each run.
const countsFile = "counts"

// reporter keeps the output of each running test until it is known whether it
// is printed.
type reporter struct {
	out     io.Writer
	tally   tally
	output  map[string][]string // by package and test
	parents map[string]bool     // tests that have subtests
	skipped map[string][]skip   // by package
}

// skip is a test that was skipped.
type skip struct{ test, reason string }

func report(in io.Reader, out io.Writer, dir string) error {
	r := &reporter{out: out, output: map[string][]string{}, parents: map[string]bool{}, skipped: map[string][]skip{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the events of go test: %w", err)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.skipped)) {
		r.printSkipped(pkg) // its end was cut off
	}
	if dir != "" {
		if err := appendLine(filepath.Join(dir, countsFile), r.tally); err != nil {
			return fmt.Errorf("keeping the counts: %w", err)
		}
	}
	if n := len(r.tally.Failed); n > 0 {
		return fmt.Errorf("%d failed", n)
	}
	return nil
}

// line handles one line of the stream. A line that is not JSON is go's own
// message (an unknown flag, a pattern without a match), and is passed on.
func (r *reporter) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		_, _ = r.out.Write(line)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.tally.Failed = append(r.tally.Failed, failed{Name: "build of " + e.ImportPath})
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			r.parents[e.Package+" "+e.Test[:i]] = true
		}
	case "pass", "fail", "skip":
		r.end(e, key)
	}
}

func (r *reporter) end(e event, key string) {
	output := r.output[key]
	delete(r.output, key)
	r.tally.timed(e)
	if e.Test == "" {
		r.endPackage(e, output)
		return
	}
	leaf := !r.parents[key]
	switch e.Action {
	case "pass":
		if leaf {
			r.tally.Passed++
		}
		for _, line := range output {
			if strings.Contains(line, " median ") {
				fmt.Fprintf(r.out, "figures %s: %s\n", e.Test, words(strings.TrimSpace(line)))
			}
		}
	case "skip":
		if leaf {
			r.tally.Skipped++
		}
		r.skipped[e.Package] = append(r.skipped[e.Package], skip{e.Test, reason(output)})
	case "fail":
		// A parent fails with its child, which has been reported already.
		if leaf || !r.childFailed(key) {
			r.tally.Failed = append(r.tally.Failed, failed{key, first(output)})
		}
		fmt.Fprint(r.out, strings.Join(output, ""))
	}
}

func (r *reporter) childFailed(key string) bool {
	return r.failed(key + "/")
}

// failed reports whether something failed whose name begins like this.
func (r *reporter) failed(prefix string) bool {
	return slices.ContainsFunc(r.tally.Failed, func(f failed) bool { return strings.HasPrefix(f.Name, prefix) })
}

// printSkipped prints why tests of a package were skipped, once for all that have the
// same reason.
func (r *reporter) printSkipped(pkg string) {
	all := r.skipped[pkg]
	delete(r.skipped, pkg)
	for len(all) > 0 {
		first := all[0]
		others := slices.DeleteFunc(slices.Clone(all[1:]), func(s skip) bool { return s.reason == first.reason })
		which := first.test
		if n := len(all) - len(others); n > 1 {
			which += fmt.Sprintf(" and %d more", n-1)
		}
		fmt.Fprintf(r.out, "skipped %s %s: %s\n", pkg, which, first.reason)
		all = others
	}
}

// packageSkipped returns why a TestMain ran none of its tests (package need).
func packageSkipped(output []string) (why string, ok bool) {
	for _, line := range output {
		if why, ok = strings.CutPrefix(line, "skipped: "); ok {
			return strings.TrimSpace(why), true
		}
	}
	return "", false
}

func (r *reporter) endPackage(e event, output []string) {
	r.printSkipped(e.Package)
	switch e.Action {
	case "pass":
		if why, ok := packageSkipped(output); ok {
			r.tally.Skipped++
			fmt.Fprintf(r.out, "skipped %s: %s\n", e.Package, why)
			return
		}
		fmt.Fprintf(r.out, "ok      %-60s %6.1f s\n", e.Package, e.Elapsed)
	case "fail":
		// Without a failed test of its own the package failed in TestMain or by
		// a time-out, and only its own output has the reason. A failed build
		// has been counted already.
		prefix := e.Package + " "
		if e.FailedBuild == "" && !r.failed(prefix) {
			r.tally.Failed = append(r.tally.Failed, failed{prefix + "(the package as a whole)", first(output)})
			fmt.Fprint(r.out, strings.Join(output, ""))
		}
		fmt.Fprintf(r.out, "FAILED  %-60s %6.1f s\n", e.Package, e.Elapsed)
	}
}

// reason returns the text of t.Skip in a skipped test's output.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		return words(line)
	}
	return "no reason given"
}

// words returns a test's log line, without its file and number.
func words(line string) string {
	if _, after, ok := strings.Cut(line, ".go:"); ok {
		_, line, _ = strings.Cut(after, ": ")
	}
	return line
}

// appendLine appends a value to a file, as a line of JSON.
func appendLine(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}

// readLines returns the values of a file with a line of JSON for each, none if there is no such
// file.
func readLines[T any](path string) (all []T, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for dec := json.NewDecoder(f); ; {
		var value T
		err := dec.Decode(&value)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, value)
	}
}

// readCounts returns the sum of the counts in dir.
func readCounts(dir string) (all tally, err error) {
	runs, err := readLines[tally](filepath.Join(dir, countsFile))
	if err == nil && len(runs) == 0 {
		err = errors.New("no run has left its counts in " + dir)
	}
	for _, t := range runs {
		all.add(t)
	}
	return all, err
}

func printSum(out io.Writer, dir, before string, noSkips bool) error {
	all, err := readCounts(dir)
	if err != nil {
		return err
	}
	earlier, _ := readCounts(before) // none in the first run
	if err := keepDurations(dir, append(all.Packages, earlier.Packages...)); err != nil {
		return err
	}
	if err := printSteps(out, dir, before); err != nil {
		return err
	}
	printLargest(out, "slowest packages", 10, all.Packages, earlier.Packages)
	printLargest(out, "slowest tests", 15, all.Tests, earlier.Tests)
	if err := printCosts(out, dir, before); err != nil {
		return err
	}
	printSlower(out, append(all.Packages, all.Tests...), append(earlier.Packages, earlier.Tests...))
	for _, f := range all.Failed {
		fmt.Fprintf(out, "FAILED %s\n%s", f.Name, f.First)
	}
	if seed := os.Getenv(need.SeedVariable); len(all.Failed) > 0 && seed != "" {
		fmt.Fprintf(out, "to repeat a failed test with the same samples: %s=%s go test -count=1 -v -run '^TEST$' PACKAGE\n", need.SeedVariable, seed)
	}
	fmt.Fprintf(out, "tests: %d passed, %d failed, %d skipped\n", all.Passed, len(all.Failed), all.Skipped)
	if all.Passed == 0 {
		return errors.New("no test ran")
	}
	if n := len(all.Failed); n > 0 {
		return fmt.Errorf("%d failed", n)
	}
	if noSkips && all.Skipped > 0 {
		return fmt.Errorf("%d skipped, and every test must run", all.Skipped)
	}
	return nil
}

// secondsOf returns the times by name.
func secondsOf(all []timing) map[string]float64 {
	byName := map[string]float64{}
	for _, t := range all {
		byName[t.Name] = t.Seconds
	}
	return byName
}

// printLargest prints a title and the n tests or packages with the most seconds, and what they took
// before.
func printLargest(out io.Writer, title string, n int, all, before []timing) {
	all = slices.DeleteFunc(slices.Clone(all), func(t timing) bool { return t.Seconds < worth })
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b timing) int { return cmp.Compare(b.Seconds, a.Seconds) })
	was := secondsOf(before)
	fmt.Fprintf(out, "%s:\n", title)
	for _, t := range all[:min(n, len(all))] {
		fmt.Fprintf(out, "%8.1f s  %s", t.Seconds, t.Name)
		if s, ok := was[t.Name]; ok {
			fmt.Fprintf(out, " (before: %.1f s)", s)
		}
		fmt.Fprintln(out)
	}
}

// printSlower prints the tests and packages that take half as long again as before, and ten
// seconds more.
func printSlower(out io.Writer, all, before []timing) {
	was := secondsOf(before)
	var slower []timing
	for _, t := range all {
		if s, ok := was[t.Name]; ok && t.Seconds > s*1.5 && t.Seconds > s+10 {
			slower = append(slower, timing{t.Name, t.Seconds - s})
		}
	}
	if len(slower) == 0 {
		return
	}
	slices.SortStableFunc(slower, func(a, b timing) int { return cmp.Compare(b.Seconds, a.Seconds) })
	fmt.Fprintln(out, "slower than before:")
	for _, t := range slower[:min(10, len(slower))] {
		fmt.Fprintf(out, "%+8.1f s  %s\n", t.Seconds, t.Name)
	}
}
