package pages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
)

// clone is where the pages have the checkout.
const clone = "/home/you/rail-cni"

func TestStartPage(t *testing.T) { walk(t, "docs/guide/start.md") }

func TestRunAJobPage(t *testing.T) { walk(t, "docs/guide/job.md") }

// step is a block of commands of a page, and the block of output behind it.
type step struct{ commands, output string }

var block = regexp.MustCompile("(?s)\n```(sh|text)\n(.*?\n)```\n")

// steps returns the steps of a page. The first starts the cluster, and the last ends it.
func steps(t *testing.T, page string) (all []step) {
	t.Helper()
	for _, m := range block.FindAllStringSubmatch(docs.Page(t, page), -1) {
		if m[1] == "sh" {
			all = append(all, step{commands: m[2]})
		} else if len(all) > 0 && all[len(all)-1].output == "" {
			all[len(all)-1].output = m[2]
		}
	}
	if n := len(all); n < 4 || !strings.HasPrefix(all[0].commands, "make cluster ") || all[n-1].commands != "make cluster-down\n" {
		t.Fatalf("%s begins and ends with other commands: %+v", page, all)
	}
	return all
}

// log is what a running command prints.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// shell returns a command that runs a script at the top of the checkout.
func shell(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.WaitDelay = top(t), 10*time.Second
	for _, v := range os.Environ() { // a make that runs this test has told it things
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "MAKE") && name != "MFLAGS" && name != "CHART" && name != "JOB" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// top returns the top of the checkout.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs the first step of a page until the cluster is there. The last one ends it with the test.
func start(t *testing.T, first, last step) {
	t.Helper()
	// The last step would end a cluster of somebody else's too.
	if err := cluster.Unclaimed(filepath.Join(top(t), "bin", "cluster.pid")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var printed log
	cmd := shell(t, first.commands)
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if out, err := shell(t, last.commands).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", last.commands, err, out)
		}
		select {
		case err := <-ended:
			if text := printed.String(); err != nil || !strings.HasSuffix(text, "ending\n") {
				t.Errorf("%s: %v\n%s", first.commands, err, text)
			}
		case <-time.After(time.Minute):
			t.Errorf("after %q the cluster goes on: process %d", last.commands, cmd.Process.Pid)
		}
	})
	for !strings.Contains(printed.String(), "\n  make cluster-down\n") {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s: %v\n%s", first.commands, err, printed.String())
		case <-time.After(200 * time.Millisecond):
		}
		if time.Since(began) > 30*time.Minute { // a fresh machine builds Kubernetes
			t.Fatalf("no cluster after %v\n%s", time.Since(began), printed.String())
		}
	}
	t.Logf("the cluster is there after %v\n%s", time.Since(began).Round(time.Second), printed.String())
	compare(t, first, printed.String(), true)
}

// walk runs a page: its first block in one terminal, and the others in another.
func walk(t *testing.T, page string) {
	t.Helper()
	need.Cluster(t)
	all := steps(t, page)
	between := all[1 : len(all)-1]
	start(t, all[0], all[len(all)-1])

	began := time.Now()
	const mark = "@@ next @@\n"
	var script strings.Builder
	for _, s := range between {
		script.WriteString("printf '" + strings.TrimSpace(mark) + "\\n'\n" + s.commands)
	}
	out, err := shell(t, "exec 2>&1\n"+script.String()).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v", page, err)
	}
	t.Logf("%s, %v\n%s", page, time.Since(began).Round(time.Second), out)
	printed := strings.Split(string(out), mark)[1:]
	for i, s := range between[:min(len(between), len(printed))] {
		compare(t, s, printed[i], false)
	}
}

var (
	age   = regexp.MustCompile(`\b([0-9]+[dhms])+\b`)
	mac   = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`)
	hash  = regexp.MustCompile(`\b[0-9a-f]{8,}\b|\b(rail-agent|allreduce-[01])-[0-9a-z]+\b`)
	digit = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)
)

// masked returns the lines of an output without what differs from run to run: numbers, addresses
// and the widths of columns.
func masked(text string) (lines []string) {
	for line := range strings.Lines(text) {
		for _, m := range []struct {
			what *regexp.Regexp
			by   string
		}{{age, "AGE"}, {mac, "MAC"}, {hash, "HASH"}, {digit, "N"}} {
			line = m.what.ReplaceAllString(line, m.by)
		}
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// compare fails the test if a step has printed something else than the page shows. A line "…" of
// the page stands for any lines. with: there may be more lines.
func compare(t *testing.T, s step, got string, with bool) {
	t.Helper()
	if s.output == "" {
		return
	}
	have, want := masked(strings.ReplaceAll(got, top(t), clone)), masked(s.output)
	skip := with
	for _, line := range want {
		if line == "…" {
			skip = true
			continue
		}
		for skip && len(have) > 0 && have[0] != line {
			have = have[1:]
		}
		if len(have) == 0 || have[0] != line {
			t.Errorf("%s\ndoes not print %q\nbut\n%s", s.commands, line, got)
			return
		}
		have, skip = have[1:], with
	}
	if len(have) > 0 && !skip {
		t.Errorf("%s\nalso prints %q\n%s", s.commands, have[0], got)
	}
}
