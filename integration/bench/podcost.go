package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The cost of pods beside the time that a client sees: CPU time, and the times
// of sandboxes in containerd's log.

// measured adds to t how long each pod took, in seconds, and the CPU time of
// the cluster. It reports whether a kubelet removed sandboxes meanwhile.
func (l *podLab) measured(t *podTimes, do func() ([]float64, error)) (disturbed bool, err error) {
	removedBefore, err := l.removed()
	if err != nil {
		return false, err
	}
	before, err := l.cpu()
	if err != nil {
		return false, err
	}
	seconds, err := do()
	if err != nil {
		return false, err
	}
	after, err := l.cpu()
	if err != nil {
		return false, err
	}
	t.All, t.Each = append(t.All, slices.Max(seconds)), append(t.Each, seconds...)
	t.CPU = append(t.CPU, after-before)
	removed, err := l.removed()
	return removed > removedBefore, err
}

// removed returns how many lines of the nodes' containerds are of removals of sandboxes.
func (l *podLab) removed() (n int, err error) {
	for _, log := range l.logs {
		text, err := os.ReadFile(log)
		if err != nil {
			return 0, err
		}
		n += removals(text)
	}
	return n, nil
}

// removals returns how often a log of containerd reports the beginning or the end of the
// removal of a sandbox.
func removals(log []byte) int { return bytes.Count(log, []byte(`msg="RemovePodSandbox `)) }

// cpu returns the CPU time that the processes of the cluster have used so far,
// in seconds: those of the nodes, and the control plane's, which are children
// of this process.
func (l *podLab) cpu() (sum float64, err error) {
	pids, err := children()
	if err != nil {
		return 0, err
	}
	inits := map[string]bool{}
	var stats []string
	for _, n := range l.Nodes() {
		inits[strconv.Itoa(n.Pid())] = true // it is in its node's list, too
		node, err := filepath.Glob(n.Path("/proc/[0-9]*/stat"))
		if err != nil {
			return 0, err
		}
		stats = append(stats, node...)
	}
	for _, pid := range pids {
		if !inits[pid] {
			stats = append(stats, "/proc/"+pid+"/stat")
		}
	}
	return sumCPU(stats)
}

// children returns the process IDs of this process's children.
func children() (pids []string, err error) {
	files, err := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		list, _ := os.ReadFile(file) // the thread may have ended
		pids = append(pids, strings.Fields(string(list))...)
	}
	return pids, err
}

// sumCPU returns the CPU time in seconds that is told by these files of the form
// /proc/<pid>/stat.
func sumCPU(stats []string) (sum float64, err error) {
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended, and its time is in its parent's
		}
		seconds, err := cpuOf(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += seconds
	}
	return sum, nil
}

// cpuOf returns a process' CPU time in seconds, including that of the children
// that it has waited for (proc_pid_stat(5): utime, stime, cutime, cstime,
// fields 14 to 17, in hundredths of a second).
func cpuOf(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from field 3 on
	if len(fields) < 15 {
		return 0, fmt.Errorf("not a process' status: %q", stat)
	}
	sum := 0
	for _, field := range fields[11:15] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		sum += ticks
	}
	return float64(sum) / 100, nil
}

// sandboxLine matches containerd's log lines about the beginning and the end of
// calls that make or end a sandbox, network included: 1 is the time, 2 the
// call, 3 a quote at the beginning or the outcome at the end, 4 the ID of a new
// sandbox.
var sandboxLine = regexp.MustCompile(`^time="([^"]+)" .*msg="(RunPodSandbox for &PodSandboxMetadata\{[^}]*\}|StopPodSandbox for \\"[0-9a-f]+\\")("| failed| returns (?:sandbox id \\"([0-9a-f]+)\\")?)`)

// sandboxes reads a log of containerd and adds the times that it took to make
// the sandboxes begun since then, and to end them. If several calls end the
// same sandbox the first counts, because it does the work.
func (r *podResult) sandboxes(log io.Reader, since time.Time) error {
	began := map[string]time.Time{} // calls under way
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := sandboxLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		logged, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return err
		}
		call, done, id := m[2], m[3] != `"`, m[4]
		run := strings.HasPrefix(call, "Run")
		first, known := began[call]
		to := &r.Delete
		if run {
			to = &r.Start
		}
		switch {
		case m[3] == " failed" && known:
			to.Failed++
			delete(began, call)
		case done && known && !first.IsZero():
			if run {
				began[fmt.Sprintf(`StopPodSandbox for \"%s\"`, id)] = time.Time{} // one to look for
			}
			to.Sandbox = append(to.Sandbox, milliseconds(logged.Sub(first)))
			delete(began, call)
		case !done && (run && logged.After(since) || known && first.IsZero()):
			began[call] = logged
		}
	}
	return lines.Err()
}
