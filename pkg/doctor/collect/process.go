package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor"
)

// process is a process of the node.
type process struct {
	pid   int
	comm  string // cut to 15 bytes by the kernel
	netns uint64 // the inode of its network namespace, 0 if the process has ended
}

// processes are the processes that this process can see.
type processes struct {
	list []process
	// all is true if the list contains every process of the node.
	all bool
	// unread is the reason why some processes in containers have no netns in the list.
	unread error
}

// initPIDNamespace is the inode of the first PID namespace (PROC_PID_INIT_INO).
const initPIDNamespace = "pid:[4026531836]"

// scanProcesses lists the processes. It returns an error if the mount of /proc hides the processes
// of other users.
func (c *collector) scanProcesses() (*processes, error) {
	names, err := namesIn(c.Proc)
	if err != nil {
		return nil, err
	}
	if _, err := os.ReadFile(filepath.Join(c.Proc, "1/comm")); err != nil {
		return nil, fmt.Errorf("the processes of other users are hidden (hidepid): %w", err)
	}
	of, err := os.Readlink(filepath.Join(c.Proc, "self/ns/pid"))
	p := &processes{all: err == nil && of == initPIDNamespace}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		comm, err := readText(filepath.Join(c.Proc, name, "comm"))
		if err != nil {
			continue // it has ended
		}
		one := process{pid: pid, comm: comm}
		target, err := os.Readlink(filepath.Join(c.Proc, name, "ns/net"))
		switch {
		case err == nil:
			one.netns, _ = strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
		case errors.Is(err, fs.ErrPermission) && c.mayBeInContainer(pid):
			p.unread = err
		}
		p.list = append(p.list, one)
	}
	slices.SortFunc(p.list, func(a, b process) int { return a.pid - b.pid })
	return p, nil
}

// mayBeInContainer reports whether the process is or may be in the cgroup of a container.
func (c *collector) mayBeInContainer(pid int) bool {
	text, err := readText(c.procPath(pid, "cgroup"))
	return err != nil && !errors.Is(err, fs.ErrNotExist) || containerID.MatchString(text)
}

// errOtherPIDs is the error for facts about processes that may be hidden.
var errOtherPIDs = errors.New("this process runs in its own PID namespace and cannot see all processes; run it in the host's PID namespace (hostPID: true)")

// errContained is the error for facts about files, if a container may have other files than the
// node.
var errContained = errors.New("this process may be in a container that does not have the node's files; run it in the host's mount namespace")

// hostRoot is the root directory of process 1.
const hostRoot = "/proc/1/root"

// NodeRoot returns the root directory of the node's files for [Options]. On the host it is "/". In
// a container with the host's processes (hostPID: true) it is the root directory of process 1.
func NodeRoot() string {
	own, err := os.Readlink("/proc/self/ns/mnt")
	first, firstErr := os.Readlink("/proc/1/ns/mnt")
	_, noFiles := os.Stat(hostRoot + "/usr") // if process 1 is the program of a pod, its root has no /usr
	if err != nil || firstErr != nil || noFiles != nil || own == first {
		return "/"
	}
	return hostRoot
}

// contained reports whether the files that this process sees may belong to a container and not to
// the node.
func (c *collector) contained() bool {
	if c.Root != "/" {
		return false // the caller has said where the node's files are
	}
	own, err := os.Readlink(filepath.Join(c.Proc, "self/ns/mnt"))
	first, firstErr := os.Readlink(filepath.Join(c.Proc, "1/ns/mnt")) // only root may read it
	pids, pidErr := os.Readlink(filepath.Join(c.Proc, "self/ns/pid"))
	return err == nil && firstErr == nil && own != first || pidErr != nil || pids != initPIDNamespace
}

// runs reports whether a process with one of these names is running.
func (p *processes) runs(names ...string) (bool, error) {
	if slices.ContainsFunc(p.list, func(q process) bool { return slices.Contains(names, q.comm) }) {
		return true, nil
	}
	if !p.all {
		return false, errOtherPIDs
	}
	return false, nil
}

// daemons are the programs whose children inherit their limits.
var daemons = []string{"containerd", "kubelet", "dockerd", "crio"}

// daemonLimits returns the limits of the daemons that are running.
func (c *collector) daemonLimits(context.Context) ([]doctor.Memlock, error) {
	processes, err := c.processes()
	if err != nil {
		return nil, err
	}
	if _, err := processes.runs(daemons...); err != nil {
		return nil, err
	}
	var found []doctor.Memlock
	for _, p := range processes.list {
		if !slices.Contains(daemons, p.comm) {
			continue
		}
		limit, err := c.memlock(p.pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		limit.Process = p.comm
		found = append(found, limit)
	}
	return found, nil
}

// memlock returns the soft and hard limits of locked memory of a process.
func (c *collector) memlock(pid int) (doctor.Memlock, error) {
	name := filepath.Join(c.Proc, strconv.Itoa(pid), "limits")
	text, err := readText(name)
	if err != nil {
		return doctor.Memlock{}, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "Max locked memory")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		soft, err := limitOf(fields[0])
		hard, hardErr := limitOf(fields[1])
		return doctor.Memlock{PID: pid, Soft: soft, Hard: hard}, errors.Join(err, hardErr)
	}
	return doctor.Memlock{}, fmt.Errorf("%s has no line \"Max locked memory\"", name)
}

func limitOf(text string) (int64, error) {
	if text == "unlimited" {
		return doctor.Unlimited, nil
	}
	return strconv.ParseInt(text, 10, 64)
}
