package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has, and has used.
type Usage struct {
	RSS         int           // resident memory, in KiB
	CPU         time.Duration // of all threads since its start, in user mode and in the kernel
	Descriptors int           // open file descriptors
}

// tick is the unit of CPU times in /proc/<pid>/stat, 1/sysconf(_SC_CLK_TCK), on Linux.
const tick = 10 * time.Millisecond

// Usage returns what the process uses now. It fails if the process has ended.
func (p *Process) Usage() (Usage, error) {
	dir := fmt.Sprintf("/proc/%d/", p.Pid())
	var u Usage
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		if value, is := strings.CutPrefix(line, "VmRSS:"); is {
			if u.RSS, err = strconv.Atoi(strings.Fields(value)[0]); err != nil {
				return u, err
			}
		}
	}
	if u.RSS == 0 {
		return u, fmt.Errorf("%s has no VmRSS: it has ended", p.name)
	}
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, err
	}
	// utime and stime are the fields 14 and 15; the second, the name, may have spaces
	// (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, text := range fields[11:13] {
		ticks, err := strconv.Atoi(text)
		if err != nil {
			return u, err
		}
		u.CPU += time.Duration(ticks) * tick
	}
	open, err := os.ReadDir(dir + "fd")
	u.Descriptors = len(open)
	return u, err
}
