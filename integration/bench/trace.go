package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// kernel counts the requests of a verb's processes to the kernel's network.
type kernel struct {
	Requests int `json:"requests"` // messages sent on netlink sockets
	// Waits is the number of system calls with requests that took longer than waits. The kernel
	// then waited, most often for a grace period (synchronize_net), and with it
	// every process that needs the RTNL.
	Waits int `json:"waits"`
}

const (
	waits  = 2 * time.Millisecond
	traces = 5 // of each verb: the fewest requests count, and the fewest waits
)

// strace is the command line of strace(1), without the output and the command.
var strace = []string{"-f", "-yy", "-T", "-e", "trace=sendto,sendmsg,sendmmsg", "-e", "signal=none"}

// count traces each contender's verbs a few times, apart from the timed rounds
// because a traced process is slow. Without strace(1) nothing is counted.
func (m *measurement) count(s *scratch, list []*contender, settle time.Duration) {
	program, err := exec.LookPath("strace")
	if err != nil {
		return
	}
	for range traces {
		m.ready(list)
		for _, c := range list {
			if r := m.results[c.id]; r.Err == nil && r.NotCounted == nil {
				if r.NotCounted = r.countOnce(s, program, c, settle); r.NotCounted != nil {
					r.AddKernel, r.DelKernel = nil, nil
				}
			}
		}
	}
}

func (r *result) countOnce(s *scratch, program string, c *contender, settle time.Duration) error {
	log := filepath.Join(filepath.Dir(s.out.Name()), "strace")
	var result []byte
	for _, verb := range []struct {
		steps []step
		least **kernel
	}{{c.add, &r.AddKernel}, {c.del, &r.DelKernel}} {
		time.Sleep(settle)
		var sum kernel
		for _, step := range verb.steps {
			run, err := step(result)
			if err != nil {
				return err
			}
			run.args = append(append([]string{"-o", log}, append(strace, run.path)...), run.args...)
			run.path = program
			_, out, err := s.time(run)
			if err != nil {
				return err
			}
			if len(out) > 0 {
				result = out
			}
			text, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			k, err := readTrace(string(text))
			if err != nil {
				return err
			}
			sum.Requests, sum.Waits = sum.Requests+k.Requests, sum.Waits+k.Waits
		}
		if *verb.least == nil {
			*verb.least = &sum
		}
		(*verb.least).Requests = min((*verb.least).Requests, sum.Requests)
		(*verb.least).Waits = min((*verb.least).Waits, sum.Waits)
	}
	return nil
}

// readTrace counts in the output of strace(1). The line of a system call is split
// where another thread's comes in between:
//
//	12 sendto(3<NETLINK:[ROUTE:12]>, … <unfinished ...>
//	12 <... sendto resumed>) = 32 <0.000123>
func readTrace(text string) (kernel, error) {
	var k kernel
	asking := map[string]bool{} // processes within a netlink request
	for line := range strings.Lines(text) {
		process, call, _ := strings.Cut(strings.TrimSpace(line), " ")
		call = strings.TrimSpace(call)
		switch resumed := strings.HasPrefix(call, "<... "); {
		case resumed && asking[process]:
			delete(asking, process)
		case resumed || !strings.Contains(call, "(") || !onNetlink(call):
			continue
		default:
			k.Requests += max(1, strings.Count(call, "{nlmsg_len=")) // many may go by one system call
			if strings.HasSuffix(call, "<unfinished ...>") {
				asking[process] = true
				continue
			}
		}
		took, err := duration(call)
		if err != nil {
			return k, err
		}
		if took > waits {
			k.Waits++
		}
	}
	return k, nil
}

// onNetlink reports whether the first argument of a call is a netlink socket.
func onNetlink(call string) bool {
	_, args, _ := strings.Cut(call, "(")
	first, _, _ := strings.Cut(args, ",")
	return strings.Contains(first, "<NETLINK:")
}

// duration reads the time at the end of a line: "… = 32 <0.000123>".
func duration(call string) (time.Duration, error) {
	i := strings.LastIndexByte(call, '<')
	seconds, err := strconv.ParseFloat(strings.Trim(call[i+1:], "<>"), 64)
	if i < 0 || err != nil {
		return 0, fmt.Errorf("strace wrote no time: %w", errors.Join(err, errors.New(call)))
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
